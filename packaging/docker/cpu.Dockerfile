# anllm for Linux without a GPU. From the root of the clone:
#   docker build -f packaging/docker/cpu.Dockerfile -t anllm:cpu .
# Python packages are those of the lock files, by hash. docs/packages.md says how to run it.

FROM python:3.13-slim-trixie AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
WORKDIR /src
COPY locks/pip.txt locks/build.txt locks/cpu.txt locks/
RUN python -m venv /opt/anllm \
 && /opt/anllm/bin/pip install --require-hashes -r locks/pip.txt \
 && /opt/anllm/bin/pip install --require-hashes -r locks/build.txt \
 && /opt/anllm/bin/pip install --require-hashes -r locks/cpu.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/anllm/bin/pip install --no-index --no-deps --no-build-isolation .

FROM python:3.13-slim-trixie
# The compiler makes MLX's fused kernels and the library of products. Its version is the distribution's, with its repairs.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 anllm \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/cache/anllm --shell /usr/sbin/nologin anllm \
 && install --directory --owner=10001 --group=10001 /var/cache/anllm
COPY --from=build /opt/anllm /opt/anllm
COPY packaging/docker/health.py /opt/anllm/health.py
ENV PATH=/opt/anllm/bin:$PATH \
    HF_HOME=/var/cache/anllm/huggingface \
    XDG_CACHE_HOME=/var/cache \
    PIP_NO_CACHE_DIR=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    ANLLM_SERVE_HOST=0.0.0.0 \
    ANLLM_SERVE_DRAIN_TIMEOUT=7
USER 10001:10001
WORKDIR /var/cache/anllm
VOLUME /var/cache/anllm
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 CMD ["python", "-I", "/opt/anllm/health.py"]
ENTRYPOINT ["anllm"]
CMD ["serve"]
