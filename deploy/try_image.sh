#!/usr/bin/env bash
# Run the Dockerfile's steps in a new virtual environment, serve a model, and ask it once:
#   deploy/try_image.sh MODEL_FOLDER
# It does what the image does but for the base image and the user; torch comes from the usual index.
set -euo pipefail
model=$(realpath "$1")
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip="$work/venv/bin/pip --quiet --disable-pip-version-check"
$pip install torch==2.13.0
$pip install 'setuptools>=77' lazy-loader
git -C "$(dirname "$0")/.." archive HEAD | tar -x -C "$work" --one-top-level=source
BERTWRIGHT_WHEEL=$(uname -m) $pip wheel --no-deps --no-build-isolation --wheel-dir "$work/wheels" "$work/source"
$pip install "$(ls "$work"/wheels/*.whl)[serve]"
cd "$work"
BERTWRIGHT_API_KEY=secret "$work/venv/bin/bertwright" serve --host 0.0.0.0 --port 18000 "$model" &
server=$!
for _ in $(seq 120); do
    if curl --silent --fail http://127.0.0.1:18000/health -H 'Authorization: Bearer secret'; then break; fi
    sleep 1
done
curl --silent --show-error --fail http://127.0.0.1:18000/models -H 'Authorization: Bearer secret'
[ "$(curl --silent --output "$work/reply" --write-out '%{http_code}' http://127.0.0.1:18000/models)" = 401 ]
echo
kill -TERM "$server" && wait "$server"
server=
