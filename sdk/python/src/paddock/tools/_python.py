"""Tools for Python."""

from __future__ import annotations

from typing import Dict, List

from pydantic import BaseModel, Field

from ..execution import Result
from ..kernel import as_code_result
from ..session import SandboxSession
from ._kit import NO_NETWORK, Answer, Refusal, cut, is_network, tool


class PythonExec(BaseModel):
    code: str = Field(description="Python, any number of lines. What is printed, the value of the "
                                  "last expression and plots are shown.")
    timeout: float = Field(120, gt=0, le=3600, description="Seconds until it is interrupted.")


@tool("python_exec", PythonExec, """Run Python code in the sandbox. The interpreter stays: variables,
      functions and imports of earlier calls are still there. Shown are what is printed, the value of the
      last expression, and plots.""")
def python_exec(session: SandboxSession, a: PythonExec) -> Answer:
    execution = session.kernel.execute(a.code, a.timeout)
    done = as_code_result(execution, a.timeout)
    limit = session.output_max_chars
    parts = [cut(done.output, limit).rstrip("\n"), *_shown(execution.results, limit)]
    if done.stderr.strip():
        parts.append("[stderr]\n" + cut(done.stderr, max(limit // 4, 1)).rstrip("\n"))
    if not done.success:
        parts.append(cut(done.error, max(limit // 2, 1)).rstrip("\n"))
        if is_network(done.error):
            parts.append(f"[{NO_NETWORK}]")
    text = "\n".join(p for p in parts if p)
    return Answer(text or "[done; nothing was printed]", {
        "success": done.success, "output": cut(done.output, limit), "error": cut(done.error, limit),
        "state_lost": done.state_lost, "text": execution.text,
        "images": [image for r in execution.results for image in _images(r)]})


def _images(result: Result) -> List[Dict[str, str]]:
    """Its pictures, as LangChain's content blocks have them; the model itself does not get them."""
    return [{"type": "image", "base64": data, "mime_type": f"image/{kind}"}
            for kind, data in (("png", result.png), ("jpeg", result.jpeg)) if data]


def _shown(results: List[Result], limit: int) -> List[str]:
    parts = []
    for result in results:
        text = result.text or result.markdown or result.html or ""
        if _images(result):
            text = f"[a picture: {text}]" if text else "[a picture]"
        parts.append(cut(text, limit).rstrip("\n"))
    return parts


class PipInstall(BaseModel):
    packages: List[str] = Field(min_length=1, description="Paths of wheels or projects in the "
                                                          "sandbox, or names such as numpy==1.26.")


_AFTER = """
import importlib, site, sys
site.addsitedir(site.getusersitepackages())
importlib.invalidate_caches()
"""


@tool("pip_install", PipInstall, """Install Python packages for python_exec and shell_exec. Wheels and
      projects in the sandbox can be installed by path; of names, unless the sandbox was given a way
      out to an index, only those that are installed already succeed.""")
def pip_install(session: SandboxSession, a: PipInstall) -> Answer:
    for package in a.packages:
        if package.startswith("-"):
            raise Refusal(f"Error: packages: '{package}' is an option, not a package; for options "
                          "run pip by shell_exec")
    result = session.backend.exec(
        session.sandbox_id,
        ["python3", "-m", "pip", "install", "--user", "--retries", "0", "--timeout", "5",
         "--disable-pip-version-check", "--no-input", "--no-color", "--", *a.packages],
        cwd="/workspace", timeout_s=300,
        env={"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_NO_CACHE_DIR": "1",
             "PIP_NO_WARN_SCRIPT_LOCATION": "1"})
    output = cut((result.stdout + result.stderr).strip(), session.output_max_chars)
    if result.status:
        text = f"Error: pip install ended with status {result.status}\n{output}"
        if is_network(output):
            text += (f"\n{NO_NETWORK} Write the program with the standard library, or with packages "
                     "that `pip list` shows.")
        raise Refusal(text)
    if session.kernel.running:
        session.kernel.run(_AFTER, 30)
    return Answer(output, {"packages": a.packages})
