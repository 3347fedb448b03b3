"""A service that does nothing twice for one Dedup-Key: its lines are those of docs/done-once.md for
FastAPI, with SQLite in place of PostgreSQL."""

import sqlite3
import sys
import textwrap
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

port, path, lines = int(sys.argv[1]), sys.argv[2], sys.argv[3]


def connect():
    db = sqlite3.connect(path, timeout=30, isolation_level=None)
    db.execute("PRAGMA synchronous = FULL")
    return db


with connect() as db:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, dedup_key TEXT UNIQUE, item TEXT)")
    db.execute("CREATE TABLE IF NOT EXISTS stock (item TEXT)")
    db.execute("CREATE TABLE IF NOT EXISTS deliveries (item TEXT)")


class Transaction:
    def __init__(self, db):
        self.db = db

    def execute(self, statement, values):
        return self.db.execute(statement.replace("%s", "?"), values)


class Pool:
    @contextmanager
    def connection(self):
        db = connect()
        db.execute("BEGIN IMMEDIATE")
        yield Transaction(db)
        db.execute("COMMIT")
        db.close()


def reserve_stock(tx, order):
    tx.execute("INSERT INTO stock SELECT item FROM orders WHERE id = %s", (order,))


page = {"pool": Pool(), "reserve_stock": reserve_stock, "JSONResponse": lambda content, status: (content, status)}
exec("def answer(request, order):\n" + textwrap.indent(lines, "    "), page)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        size = int(self.headers["Content-Length"])
        item = self.rfile.read(size).decode()
        if len(item) < size:  # the proxy was killed: this is no whole request
            self.close_connection = True
            return
        db = connect()
        db.execute("INSERT INTO deliveries VALUES (?)", (item,))
        db.close()
        content, status = page["answer"](self, SimpleNamespace(item=item))
        body = str(content["id"]).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        """Says how often each item was delivered, and done."""
        db = connect()
        rows = db.execute("SELECT item, count(*), (SELECT count(*) FROM stock WHERE stock.item = deliveries.item) FROM deliveries GROUP BY item").fetchall()
        body = "".join(f"{item} {delivered} {done}\n" for item, delivered, done in rows).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
