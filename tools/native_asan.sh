#!/bin/sh
# Fuzz the C module under the address and undefined-behaviour sanitizers: tools/native_asan.sh [SECONDS]
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
${CC:-gcc} -g -O1 -std=c11 -Wall -Wextra -Werror -fPIC -shared -fno-omit-frame-pointer \
    -fsanitize=address,undefined -fno-sanitize-recover=all "-I$headers" src/amble/_native.c -o "$folder/_native.abi3.so"
# The interpreter itself keeps memory to its end, so leaks are not looked for; its own allocator would hide overruns.
LD_PRELOAD="$(${CC:-gcc} -print-file-name=libasan.so) $(${CC:-gcc} -print-file-name=libubsan.so)" \
    ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
    "$python" -m tests.support.native "$folder/_native.abi3.so" "${1:-20}"
