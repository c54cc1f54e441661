"""A Python program that has imported torch and forks copies of itself that run scripts.

Each copy executes its script as ``__main__`` and then ends as any interpreter does, with all its
exit handlers and destructors, but starts in milliseconds in place of seconds. Requests come as JSON
lines on standard input: ``{"run": path, "args": [...], "env": {...}, "out": path, "err": path}`` is
answered with ``{"pid": n}``, ``{"wait": pid}`` with the wait status, or null while it runs.
"""

import gc
import importlib
import json
import os
import pathlib
import sys

for _name in ("torch", "torch.distributed", "torch.nn.parallel"):
    importlib.import_module(_name)
gc.freeze()  # the copies need not take apart what they did not build


def _serve():
    """Answers requests; returns in a forked copy with the request to run, never otherwise."""
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            pid, status = os.waitpid(request["wait"], os.WNOHANG)
            answer = {"status": os.waitstatus_to_exitcode(status) if pid else None}
        else:
            pid = os.fork()
            if pid == 0:
                return request
            answer = {"pid": pid}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    os._exit(0)


def _become(request):
    """Takes on the request's environment, arguments and files; returns its code."""
    for name, number in (("out", 1), ("err", 2)):
        fd = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [request["run"], *request["args"]]
    globals()["__file__"] = request["run"]
    return compile(pathlib.Path(request["run"]).read_text(), request["run"], "exec")


exec(_become(_serve()))
