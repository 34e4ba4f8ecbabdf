"""What a server tells Prometheus, read with prometheus-client, which anllm brings: `anllm serve`."""

import argparse
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families


def read(url: str) -> dict[str, float]:
    """Name of a sample -> its value, summed over labels. Buckets of histograms are left out."""
    with urlopen(f"{url}/metrics", timeout=10) as page:
        text = page.read().decode()
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


def mean(samples: dict[str, float], histogram: str) -> float:
    """0 where nothing was counted yet."""
    return samples[f"{histogram}_sum"] / max(samples[f"{histogram}_count"], 1)


def main(base_url: str) -> None:
    samples = read(base_url.removesuffix("/v1"))
    print(f"running {samples['vllm:num_requests_running']:.0f}, waiting {samples['vllm:num_requests_waiting']:.0f}")
    print(f"K/V in use {samples['vllm:kv_cache_usage_perc']:.0%}")
    print(f"tokens so far: {samples['vllm:prompt_tokens_total']:.0f} read")
    print(f"               {samples['vllm:generation_tokens_total']:.0f} written")
    print(f"first token after {1000 * mean(samples, 'vllm:time_to_first_token_seconds'):.0f} ms on average")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="of the server, with /v1")
    main(parser.parse_args().url)
