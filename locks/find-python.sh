#!/bin/sh
# Prints the Python to make .venv with: the one given, or the first on the PATH that will do. Else says why, and fails.
#   find-python.sh [PYTHON]

older="" bare=""
for python in ${1:-python3 python3.14 python3.13 python3.12 python3.11}; do
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    if ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'; then
        older="$older $python is $version;"
    elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        bare=$python
    else
        command -v "$python"
        exit 0
    fi
done
if [ -n "$bare" ]; then
    echo "$bare can't make virtual environments: install python3-venv (Debian, Ubuntu: apt install python3-venv)." >&2
elif [ -n "$older" ]; then
    echo "anllm needs Python 3.11 to 3.14, but$older install another one, or name it: make PYTHON=/path/to/python." >&2
else
    echo "There is no ${1:-python3} on the PATH: install Python 3.11 to 3.14, or name it: make PYTHON=/path/to/python." >&2
fi
exit 1
