"""The addresses of the page. Each stands for one handler."""

from __future__ import annotations

from fastapi import APIRouter

from livingkv.server.page import adding, asking, door, forgetting, keys_page, looking, sessions, status
from livingkv.server.page.access import LOGIN, PageAccess
from livingkv.server.page.changes import Changes
from livingkv.server.page.rendering import Rendering
from livingkv.server.page.samples import Samples
from livingkv.server.page.visit import PageParts, Pages
from livingkv.server.service import Service


def page_routes(service: Service, access: PageAccess) -> APIRouter:
    """The page's routes."""
    pages = Pages(APIRouter(), PageParts(service, access, Rendering(), Changes(), Samples()))
    _add_looking(pages)
    _add_changing(pages)
    for method in ("GET", "POST"):
        pages.add(method, LOGIN, door.login)
    pages.add("POST", "/page/logout", door.logout)
    pages.add("GET", "/static/{name:path}", door.static)
    pages.add("GET", "/page/{rest:path}", door.missing)
    return pages.router


def _add_looking(pages: Pages) -> None:
    pages.add("GET", "/", looking.home)
    pages.add("GET", "/page/memories", looking.memories)
    pages.add("GET", "/page/memory/{sentence_id}", looking.memory)
    pages.add("GET", "/page/sessions", sessions.sessions)
    pages.add("GET", "/page/session", sessions.session)
    pages.add("GET", "/page/export", sessions.export)
    pages.add("GET", "/page/ask", asking.ask)
    pages.add("POST", "/page/ask", asking.ask)
    pages.add("POST", "/page/ask/stream", asking.ask_stream)
    pages.add("GET", "/page/add", adding.add)
    pages.add("GET", "/page/activity", adding.activity)
    pages.add("GET", "/page/jobs/{job_id}", adding.job)
    pages.add("GET", "/page/status", status.status)
    pages.add("GET", "/page/series", status.series)
    pages.add("GET", "/page/keys", keys_page.keys)


def _add_changing(pages: Pages) -> None:
    pages.add("POST", "/page/memory/{sentence_id}", looking.edit)
    pages.add("POST", "/page/forget", forgetting.forget)
    pages.add("POST", "/page/session", sessions.act)
    pages.add("POST", "/page/ingest", adding.ingest)
    pages.add("POST", "/page/ingest/file", adding.ingest_file, upload=True)
    pages.add("POST", "/page/import", adding.import_file, upload=True)
    pages.add("POST", "/page/jobs/{job_id}/cancel", adding.cancel)
    pages.add("POST", "/page/defrag", status.defrag)
    pages.add("POST", "/page/keys", keys_page.add_key)
    pages.add("POST", "/page/keys/revoke", keys_page.revoke)
