"""The alert rules and the dashboard in `deploy`, against the metrics that a server really has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.gateway.http_client import request
from tests.support.server_process import ServerProcess

DEPLOY = Path(__file__).parents[2] / "deploy"
OF_CLUSTERS = {"nplt_cluster_problems", "nplt_store_outages_total"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (prometheus)")
def test_prometheus_accepts_settings_and_alert_rules() -> None:
    command = ["promtool", "check", "config", "prometheus.yaml"]
    done = subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_alerts_and_dashboard_use_metrics_that_exist(shared_server: ServerProcess) -> None:
    text = request(f"{shared_server.http_url}metrics").body.decode()
    families = set(re.findall(r"^# TYPE (nplt_\w+)", text, re.M)) | OF_CLUSTERS
    panels = json.loads((DEPLOY / "dashboard.json").read_text())["panels"]
    used = {
        *re.findall(r"\bnplt_\w+", (DEPLOY / "alerts.yaml").read_text()),
        *re.findall(r"\bnplt_\w+", " ".join(t["expr"] for p in panels for t in p["targets"])),
    }
    assert len(used) > 10
    assert {name.removesuffix("_bucket") for name in used} <= families
