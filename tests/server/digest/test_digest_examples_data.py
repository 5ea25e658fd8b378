"""What becomes of logs, tables and JSON: texts beside their levels.

Written out, so that a reader can judge as a model would: is it enough to go on?
"""

from __future__ import annotations

import json

from tests.server.digest.results import summary_and_gist_of_result

LOG = "".join(
    [
        "2026-05-04 09:00:00 INFO  server starting, version 4.2.1, pid 812\n",
        *(f"2026-05-04 09:00:{n:02d} INFO  GET /orders/{n} 200 in 12 ms\n" for n in range(1, 40)),
        "2026-05-04 09:00:41 WARN  pool at 18 of 20 connections\n",
        "2026-05-04 09:00:42 ERROR could not reach db-2:5432: connection refused\n",
        "2026-05-04 09:00:43 ERROR could not reach db-2:5433: connection refused\n",
        *(f"2026-05-04 09:01:{n:02d} INFO  GET /orders/{n} 200 in 14 ms\n" for n in range(1, 40)),
        "2026-05-04 09:01:41 ERROR /orders/77: KeyError: 'channel'\n",
        "2026-05-04 09:01:42 INFO  0 errors in the last sweep\n",
        "2026-05-04 09:01:43 INFO  shutting down on SIGTERM\n",
    ]
)

TABLE = "customer,date,item,quantity,channel\n" + "".join(
    f"C{n:04d},2026-03-{n % 28 + 1:02d},rye bread,{n % 7 + 1},{'shop' if n % 3 else 'wholesale'}\n"
    for n in range(1, 121)
)

RECORDS = json.dumps(
    {
        "query": "open invoices",
        "total": 240,
        "next": None,
        "items": [
            {
                "id": 18446744073709551617 + n,
                "customer": {"name": f"Customer {n}", "country": "BE", "tags": ["a", "b", "c"]},
                "amount": 120.50 + n,
                "paid": False,
                "lines": [{"sku": f"A-{n}", "quantity": 2}, {"sku": "B-1", "quantity": 1}],
            }
            for n in range(240)
        ],
        "warnings": ["rates are those of 3 May"],
    },
    indent=1,
)


def test_a_log_keeps_its_errors_and_both_ends() -> None:
    summary, gist = summary_and_gist_of_result(LOG)
    assert summary == LOG_SUMMARY
    assert gist == LOG_GIST


LOG_SUMMARY = """\
run success:
[85 lines, 3 with errors, 1 with warnings]
2026-05-04 09:00:00 INFO  server starting, version 4.2.1, pid 812
2026-05-04 09:00:01 INFO  GET /orders/1 200 in 12 ms
2026-05-04 09:00:02 INFO  GET /orders/2 200 in 12 ms
2026-05-04 09:00:03 INFO  GET /orders/3 200 in 12 ms
2026-05-04 09:00:04 INFO  GET /orders/4 200 in 12 ms
2026-05-04 09:00:05 INFO  GET /orders/5 200 in 12 ms
2026-05-04 09:00:06 INFO  GET /orders/6 200 in 12 ms
2026-05-04 09:00:07 INFO  GET /orders/7 200 in 12 ms
2026-05-04 09:00:08 INFO  GET /orders/8 200 in 12 ms
2026-05-04 09:00:09 INFO  GET /orders/9 200 in 12 ms
2026-05-04 09:00:10 INFO  GET /orders/10 200 in 12 ms
2026-05-04 09:00:11 INFO  GET /orders/11 200 in 12 ms
2026-05-04 09:00:12 INFO  GET /orders/12 200 in 12 ms
2026-05-04 09:00:13 INFO  GET /orders/13 200 in 12 ms
[… 1,405 characters left out …]
2026-05-04 09:00:41 WARN  pool at 18 of 20 connections
2026-05-04 09:00:42 ERROR could not reach db-2:5432: connection refused
[… 2,170 characters left out …]
2026-05-04 09:01:41 ERROR /orders/77: KeyError: 'channel'
2026-05-04 09:01:42 INFO  0 errors in the last sweep
2026-05-04 09:01:43 INFO  shutting down on SIGTERM"""

LOG_GIST = """\
run success: [85 lines, 3 with errors, 1 with warnings] 2026-05-04 09:00:42 ERROR could not \
reach db-2:5432: connection refused … 2026-05-04 09:01:41 ERROR /orders/77: KeyError: \
'channel'"""


def test_a_table_keeps_its_header_and_both_ends() -> None:
    summary, gist = summary_and_gist_of_result(TABLE)
    assert summary == TABLE_SUMMARY
    assert gist == TABLE_GIST


TABLE_SUMMARY = """\
run success:
[table, 121 lines]
customer,date,item,quantity,channel
C0001,2026-03-02,rye bread,2,shop
C0002,2026-03-03,rye bread,3,shop
C0003,2026-03-04,rye bread,4,wholesale
C0004,2026-03-05,rye bread,5,shop
C0005,2026-03-06,rye bread,6,shop
C0006,2026-03-07,rye bread,7,wholesale
C0007,2026-03-08,rye bread,1,shop
C0008,2026-03-09,rye bread,2,shop
C0009,2026-03-10,rye bread,3,wholesale
C0010,2026-03-11,rye bread,4,shop
C0011,2026-03-12,rye bread,5,shop
C0012,2026-03-13,rye bread,6,wholesale
C0013,2026-03-14,rye bread,7,shop
C0014,2026-03-15,rye bread,1,shop
C0015,2026-03-16,rye bread,2,wholesale
C0016,2026-03-17,rye bread,3,shop
C0017,2026-03-18,rye bread,4,shop
C0018,2026-03-19,rye bread,5,wholesale
C0019,2026-03-20,rye bread,6,shop
C0020,2026-03-21,rye bread,7,shop
C0021,2026-03-22,rye bread,1,wholesale
C0022,2026-03-23,rye bread,2,shop
C0023,2026-03-24,rye bread,3,shop
C0024,2026-03-25,rye bread,4,wholesale
C0025,2026-03-26,rye bread,5,shop
C0026,2026-03-27,rye bread,6,shop
C0027,2026-03-28,rye bread,7,wholesale
[… 3,211 characters left out …]
C0118,2026-03-07,rye bread,7,shop
C0119,2026-03-08,rye bread,1,shop
C0120,2026-03-09,rye bread,2,wholesale"""

TABLE_GIST = """\
run success: [table, 121 lines] customer,date,item,quantity,channel C0001,2026-03-02,rye \
bread,2,shop C0002,2026-03-03,rye bread,3,shop … C0120,2026-03-09,rye bread,2,wholesale"""


def test_json_keeps_its_shape_and_its_first_values() -> None:
    summary, gist = summary_and_gist_of_result(RECORDS)
    assert summary == RECORDS_SUMMARY
    assert gist == RECORDS_GIST


RECORDS_SUMMARY = """\
run success:
[JSON object, 5 keys]
"query": "open invoices"
"total": 240
"next": null
"items": [list of 240: {"id": 18446744073709551617, "customer": {"name": "Customer 0", \
"country": "BE", "tags": [list of 3]}, "amount": 120.5, "paid": false, "lines": [{"sku": "A-0", \
"quantity": 2}, {"sku": "B-1", "quantity": 1}]}, {"id": 18446744073709551618, "customer": \
{"name": "Customer 1", "country": "BE", "tags": [list of 3]}, "amount": 121.5, "paid": false, \
"lines": [{"sku": "A-1", "quantity": 2}, {"sku": "B-1", "quantity": 1}]}, {"id": \
18446744073709551619, "customer": {"name": "Customer 2", "country": "BE", "tags": [list of 3]}, \
"amount": 122.5, "paid": false, "lines": [{"sku": "A-2", "quantity": 2}, {"sku": "B-1", \
"quantity": 1}]}, …]
"warnings": ["rates are those of 3 May"]"""

RECORDS_GIST = """\
run success: [JSON object, 5 keys] {"query": "open invoices", "total": 240, "next": null, \
"items": [list of 240], "warnings": [list of 1]}"""
