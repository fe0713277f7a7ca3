#!/bin/sh
# Reads a week of notes in one process; a second process answers from what the first one kept.
# LIVINGKV and PYTHON in the environment replace the installed command and its Python, LIVINGKV_MODEL the default model.
set -eu
cd "$(dirname "$0")/.."
LIVINGKV=${LIVINGKV:-.venv/bin/livingkv}
PYTHON=${PYTHON:-.venv/bin/python}
STORE=demo-store

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
