// One way to call the server: with the key if there is one, and every fault as an ApiError.
import type { Failure } from "../types.ts";

export class ApiError extends Error {
  readonly failure: Failure;

  constructor(failure: Failure) {
    super(failure.message);
    this.failure = failure;
  }
}

/** Where the API is: beside this page, also behind a proxy that serves it below a path. */
export function url(path: string): string {
  return new URL(`.${path}`, document.baseURI).href;
}

let key = "";

export function setKey(value: string): void {
  key = value;
}

/** The answer if it is 2xx. Raises ApiError for all others and where there is no server; AbortError passes. */
export async function call(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (key) headers.set("authorization", `Bearer ${key}`);
  let response: Response;
  try {
    response = await fetch(url(path), { ...init, headers, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError(lost("The server can't be reached."));
  }
  if (!response.ok) throw new ApiError(await failureOf(response));
  return response;
}

export function lost(message: string): Failure {
  return { status: 0, message, code: null, param: null, retryAfterS: null };
}

async function failureOf(response: Response): Promise<Failure> {
  const text = await response.text().catch(() => "");
  const seconds = Number(response.headers.get("retry-after") ?? Number.NaN);
  const failure: Failure = {
    status: response.status,
    message: `The server answered with status ${response.status}.`,
    code: null,
    param: null,
    retryAfterS: Number.isFinite(seconds) ? seconds : null,
  };
  try {
    return { ...failure, ...errorObject(JSON.parse(text)) };
  } catch {
    return failure;
  }
}

/** What OpenAI's error object says, in an answer or in a stream. */
export function errorObject(body: unknown): Partial<Failure> {
  const error = (body as { error?: { message?: unknown; code?: unknown; param?: unknown } } | null)?.error;
  if (!error) return {};
  const found: Partial<Failure> = {};
  if (typeof error.message === "string" && error.message) found.message = error.message;
  if (typeof error.code === "string") found.code = error.code;
  if (typeof error.param === "string") found.param = error.param;
  return found;
}
