"""The coordinator: Python for a request, with a CSV file, whose variables and files stay."""

import uuid
from pathlib import Path

from paddock import get_sandbox_coordinator, reset_coordinator

coordinator = get_sandbox_coordinator()
request = f"request-{uuid.uuid4().hex}"
coordinator.set_request_context(request)
assert coordinator.ensure_session_with_data(str(Path(__file__).with_name("sales.csv")))

coordinator.execute_code("""
import csv
rows = [r for r in csv.DictReader(open("sales.csv")) if r["units"]]
""", "read the rows that are complete")

result = coordinator.execute_code("""
print(len(rows), "rows,", sum(int(r["units"]) * float(r["price"]) for r in rows), "in all")
""", "add them up")
print("success", result["success"], "output", result["output"].strip())

result = coordinator.execute_code("rows[100]")
print("success", result["success"], "error", result["error"].strip().splitlines()[-1])

coordinator.cleanup_session(request)
reset_coordinator()
