"""A service that does nothing twice for one Dedup-Key: a unique column, in the transaction of the work."""

import sqlite3
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

port, path = int(sys.argv[1]), sys.argv[2]


def connect():
    db = sqlite3.connect(path, timeout=30, isolation_level=None)
    db.execute("PRAGMA synchronous = FULL")
    return db


with connect() as db:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, dedup_key TEXT UNIQUE, item TEXT)")
    db.execute("CREATE TABLE IF NOT EXISTS stock (item TEXT)")
    db.execute("CREATE TABLE IF NOT EXISTS deliveries (item TEXT)")


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        size = int(self.headers["Content-Length"])
        item = self.rfile.read(size).decode()
        if len(item) < size:  # the proxy was killed: this is no whole request
            self.close_connection = True
            return
        key = self.headers["Dedup-Key"]
        db = connect()
        db.execute("INSERT INTO deliveries VALUES (?)", (item,))
        db.execute("BEGIN IMMEDIATE")
        made = db.execute("INSERT INTO orders (dedup_key, item) VALUES (?, ?) ON CONFLICT (dedup_key) DO NOTHING RETURNING id", (key, item)).fetchone()
        row = made or db.execute("SELECT id FROM orders WHERE dedup_key = ?", (key,)).fetchone()
        if made:
            db.execute("INSERT INTO stock VALUES (?)", (item,))  # the rest of the work
        db.execute("COMMIT")
        db.close()
        body = str(row[0]).encode()
        self.send_response(201)
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
