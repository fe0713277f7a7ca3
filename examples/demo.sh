#!/bin/sh
# Reads a week of notes in one process; a second process answers from what the first one kept.
# In the environment, LIVINGKV and PYTHON replace the installed command and its Python, LIVINGKV_MODEL the default model,
# DEMO_STORE the folder of the store.
set -eu
cd "$(dirname "$0")/.."
LIVINGKV=${LIVINGKV:-.venv/bin/livingkv}
PYTHON=${PYTHON:-.venv/bin/python}
STORE=${DEMO_STORE:-demo-store}
if [ -e "$STORE" ] && [ ! -d "$STORE/catalog" ]; then
    echo "demo.sh: $STORE is there and is no livingkv store; move it away" >&2
    exit 1
fi

echo "== Reading examples/notes into $STORE"
rm -rf "$STORE"
"$LIVINGKV" ingest "$STORE" examples/notes
"$LIVINGKV" stats "$STORE"

echo
echo "== A new process: five questions, then one whose answer is not there"
"$PYTHON" examples/demo.py ask "$STORE"

echo
echo "The store stays in $STORE. Ask it yourself:"
echo "  $LIVINGKV ask $STORE \"Why did we choose copper rivets?\""
