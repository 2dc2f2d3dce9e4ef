"""libpaddock by ctypes: the structs and functions of include/paddock.h."""

from __future__ import annotations

import ctypes
import os
from ctypes import (
    CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t,
    c_uint, c_uint32, c_uint64, c_void_p,
)
from pathlib import Path
from typing import Any, Dict, List, Tuple

ABI = 1
FOREVER = 2**64 - 1


class Error(Structure):
    _fields_ = [("code", c_char * 32), ("message", c_char * 352), ("retryable", c_int32),
                ("sys", c_int32), ("reserved", c_uint32 * 6)]


class Options(Structure):
    _fields_ = [("size", c_size_t), ("program", c_char_p), ("spool_dir", c_char_p),
                ("max_sandboxes", c_uint32), ("pool", c_uint32), ("idle_timeout_ms", c_uint64),
                ("max_life_ms", c_uint64)]


class Info(Structure):
    _fields_ = [("size", c_size_t), ("program", c_char * 512), ("isolation", c_char * 16),
                ("missing", c_char * 256), ("sandboxes", c_uint32), ("keeper_pid", c_int32),
                ("providers", c_char * 256)]


class SandboxOptions(Structure):
    _fields_ = [("size", c_size_t), ("user_id", c_char_p), ("thread_id", c_char_p),
                ("template_name", c_char_p), ("profile", c_char_p), ("metadata", c_char_p),
                ("policy", c_char_p), ("env", POINTER(c_char_p)), ("cwd", c_char_p),
                ("memory", c_uint64), ("pids", c_uint64), ("cpu_milli", c_uint64),
                ("disk", c_uint64), ("files", c_uint64), ("idle_timeout_ms", c_uint64),
                ("max_life_ms", c_uint64), ("queue_timeout_ms", c_uint64), ("auto_retry", c_int32),
                ("provider", c_char_p)]


class Filter(Structure):
    _fields_ = [("size", c_size_t), ("state", c_char_p), ("user_id", c_char_p),
                ("thread_id", c_char_p), ("metadata", POINTER(c_char_p))]


class SandboxInfo(Structure):
    _fields_ = [("size", c_size_t), ("id", c_char * 24), ("user_id", c_char * 136),
                ("thread_id", c_char * 136), ("template_name", c_char * 64),
                ("profile", c_char * 16), ("provider", c_char * 32), ("isolation", c_char * 16),
                ("state", c_char * 16), ("end_cause", c_char * 16), ("end_reason", c_char * 200),
                ("replaces", c_char * 24), ("created_ms", c_uint64), ("expires_ms", c_uint64),
                ("last_used_ms", c_uint64), ("ended_ms", c_uint64), ("idle_timeout_ms", c_uint64),
                ("max_life_ms", c_uint64), ("memory", c_uint64), ("pids", c_uint64),
                ("cpu_milli", c_uint64), ("disk", c_uint64), ("files", c_uint64),
                ("processes", c_uint32), ("recreated", c_int32), ("from_pool", c_int32)]


class Usage(Structure):
    _fields_ = [("size", c_size_t), ("memory", c_uint64), ("memory_peak", c_uint64),
                ("cpu_usec", c_uint64), ("pids", c_uint64)]


ON_OUTPUT = CFUNCTYPE(c_int, c_void_p, c_int, c_void_p, c_size_t)


class Command(Structure):
    _fields_ = [("size", c_size_t), ("command", c_char_p), ("argv", POINTER(c_char_p)),
                ("env", POINTER(c_char_p)), ("cwd", c_char_p), ("user", c_char_p),
                ("input", c_char_p), ("input_len", c_size_t), ("timeout_ms", c_uint64),
                ("file_size", c_uint64), ("output_max", c_uint64), ("spool_max", c_uint64),
                ("cancel", c_void_p), ("on_output", ON_OUTPUT), ("arg", c_void_p),
                ("keep_stdin", c_int32), ("pty", c_int32), ("rows", c_uint32), ("cols", c_uint32),
                ("back_pressure", c_int32), ("key", c_char_p)]


class Result(Structure):
    _fields_ = [("size", c_size_t), ("exit_code", c_int32), ("signal", c_int32),
                ("timed_out", c_int32), ("state", c_int32), ("stopped_by", c_char * 16),
                ("out", c_void_p), ("err", c_void_p), ("out_len", c_size_t), ("err_len", c_size_t),
                ("out_head", c_size_t), ("err_head", c_size_t), ("out_total", c_uint64),
                ("err_total", c_uint64), ("duration_us", c_uint64), ("cpu_usec", c_uint64),
                ("max_rss", c_uint64), ("pid", c_int32), ("process_id", c_char * 40)]


class ProcessInfo(Structure):
    _fields_ = [("size", c_size_t), ("id", c_char * 40), ("pid", c_int32), ("running", c_int32),
                ("exit_code", c_int32), ("signal", c_int32), ("timed_out", c_int32),
                ("state", c_int32), ("pty", c_int32), ("background", c_int32),
                ("stdin_open", c_int32), ("stopped_by", c_char * 16), ("command", c_char * 256),
                ("started_ms", c_uint64), ("ended_ms", c_uint64), ("duration_us", c_uint64),
                ("cpu_usec", c_uint64), ("max_rss", c_uint64), ("out_bytes", c_uint64),
                ("err_bytes", c_uint64), ("out_first", c_uint64), ("err_first", c_uint64)]


class ContextOptions(Structure):
    _fields_ = [("size", c_size_t), ("language", c_char_p), ("cwd", c_char_p), ("name", c_char_p),
                ("env", POINTER(c_char_p))]


ON_EVENT = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)


class Cell(Structure):
    _fields_ = [("size", c_size_t), ("context", c_char_p), ("code", c_char_p),
                ("code_len", c_size_t), ("env", POINTER(c_char_p)), ("timeout_ms", c_uint64),
                ("cancel", c_void_p), ("on_event", ON_EVENT), ("arg", c_void_p),
                ("keep_before", c_int32)]


class Entry(Structure):
    _fields_ = [("size_of_struct", c_size_t), ("path", c_char_p), ("target", c_char_p),
                ("type", c_char * 16), ("mode", c_uint32), ("uid", c_uint32), ("gid", c_uint32),
                ("size", c_uint64), ("mtime_ns", c_int64)]


class WriteOptions(Structure):
    _fields_ = [("size", c_size_t), ("user", c_char_p), ("mode", c_int32), ("mkdirs", c_int32)]


class Search(Structure):
    _fields_ = [("size", c_size_t), ("path", c_char_p), ("user", c_char_p), ("pattern", c_char_p),
                ("mode", c_char_p), ("glob", c_char_p), ("replacement", c_char_p),
                ("limit", c_uint32), ("ignore_case", c_int32), ("dry_run", c_int32),
                ("cancel", c_void_p)]


class Match(Structure):
    _fields_ = [("size_of_struct", c_size_t), ("path", c_char_p), ("line", c_uint64),
                ("column", c_uint64), ("text", c_char_p)]


EACH_HANDLE = CFUNCTYPE(c_int, c_void_p, c_void_p)
EACH_ENTRY = CFUNCTYPE(c_int, c_void_p, POINTER(Entry))
EACH_MATCH = CFUNCTYPE(c_int, c_void_p, POINTER(Match))
EACH_REPLACED = CFUNCTYPE(c_int, c_void_p, c_char_p, c_uint64)
EACH_EVENT = CFUNCTYPE(c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_int)
EACH_PORT = CFUNCTYPE(c_int, c_void_p, c_uint, c_char_p, c_int, c_char_p)

_E = POINTER(Error)
_H = c_void_p  # a handle
_S = c_char_p

# name: what it gives back, and what it takes (without the error, which is the last of all but a few)
_FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "open": (_H, [POINTER(Options)]), "get_info": (c_int, [_H, POINTER(Info)]),
    "cancel_new": (_H, []),
    "create": (_H, [_H, POINTER(SandboxOptions)]),
    "get_or_create": (_H, [_H, POINTER(SandboxOptions), POINTER(c_int)]),
    "find": (_H, [_H, _S]), "find_thread": (_H, [_H, _S, _S]),
    "list": (c_int, [_H, POINTER(Filter), EACH_HANDLE, c_void_p]),
    "sandbox_get": (c_int, [_H, POINTER(SandboxInfo)]),
    "pause": (c_int, [_H]), "resume": (c_int, [_H]),
    "extend": (c_int, [_H, c_uint64, c_uint64]), "end": (c_int, [_H, c_int]),
    "usage": (c_int, [_H, POINTER(Usage)]),
    "env_get": (c_int, [_H, POINTER(c_void_p), POINTER(c_void_p)]),
    "env_set": (c_int, [_H, POINTER(c_char_p), POINTER(c_char_p), _S]),
    "exec": (c_int, [_H, POINTER(Command), POINTER(Result)]),
    "start": (_H, [_H, POINTER(Command)]), "find_process": (_H, [_H, _S]),
    "each_process": (c_int, [_H, EACH_HANDLE, c_void_p]),
    "process_get": (c_int, [_H, POINTER(ProcessInfo)]),
    "process_read": (c_ssize_t, [_H, c_int, c_uint64, c_void_p, c_size_t]),
    "process_wait": (c_int, [_H, c_uint64, c_uint64, c_uint64, _H]),
    "process_signal": (c_int, [_H, c_int]),
    "process_write": (c_int, [_H, c_char_p, c_size_t, c_uint64]),
    "process_close_stdin": (c_int, [_H]), "process_resize": (c_int, [_H, c_uint, c_uint]),
    "context_create": (c_int, [_H, POINTER(ContextOptions), POINTER(c_void_p)]),
    "context_list": (c_int, [_H, POINTER(c_void_p)]),
    "context_restart": (c_int, [_H, _S, POINTER(c_void_p)]),
    "context_fork": (c_int, [_H, _S, c_int, POINTER(c_void_p)]),
    "context_undo": (c_int, [_H, _S, POINTER(c_void_p)]),
    "context_interrupt": (c_int, [_H, _S]), "context_delete": (c_int, [_H, _S]),
    "run_cell": (c_int, [_H, POINTER(Cell)]),
    "file_read": (c_int, [_H, _S, _S, c_uint64, c_uint64, _H, POINTER(c_void_p),
                          POINTER(c_size_t), POINTER(c_uint64)]),
    "file_write": (c_int, [_H, _S, c_char_p, c_size_t, POINTER(WriteOptions), EACH_ENTRY,
                           c_void_p]),
    "writer_open": (_H, [_H, _S, POINTER(WriteOptions)]),
    "writer_write": (c_int, [_H, c_char_p, c_size_t]),
    "writer_finish": (c_int, [_H, c_int, EACH_ENTRY, c_void_p]),
    "file_list": (c_int, [_H, _S, _S, c_uint, _H, EACH_ENTRY, c_void_p]),
    "file_stat": (c_int, [_H, _S, _S, EACH_ENTRY, c_void_p]),
    "file_mkdir": (c_int, [_H, _S, _S, c_int, c_uint, EACH_ENTRY, c_void_p]),
    "file_move": (c_int, [_H, _S, _S, _S, c_int, EACH_ENTRY, c_void_p]),
    "file_copy": (c_int, [_H, _S, _S, _S, c_int, _H, EACH_ENTRY, c_void_p]),
    "file_chmod": (c_int, [_H, _S, _S, c_uint, EACH_ENTRY, c_void_p]),
    "file_remove": (c_int, [_H, _S, _S, c_int, _H]),
    "file_search": (c_int, [_H, POINTER(Search), EACH_MATCH, c_void_p, POINTER(c_int)]),
    "file_replace": (c_int, [_H, POINTER(Search), EACH_REPLACED, c_void_p]),
    "file_watch": (c_int, [_H, _S, _S, c_int, _H, EACH_EVENT, c_void_p]),
    "each_port": (c_int, [_H, EACH_PORT, c_void_p]), "dial": (c_int, [_H, c_uint]),
}
_PLAIN: Dict[str, Tuple[Any, List[Any]]] = {
    "version": (c_char_p, []), "abi": (c_uint, []), "free": (None, [c_void_p]),
    "close": (None, [_H]), "cancel": (None, [_H]), "cancel_free": (None, [_H]),
    "release": (None, [_H]), "process_release": (None, [_H]), "result_done": (None, [POINTER(Result)]),
    "sandbox_metadata": (c_void_p, [_H]), "sandbox_policy": (c_void_p, [_H]),
}


def _places() -> List[str]:
    named = os.environ.get("PADDOCK_LIBRARY")
    if named:
        return [named]
    return [str(Path(__file__).parent / "_lib" / "libpaddock.so.1"), "libpaddock.so.1"]


def load() -> ctypes.CDLL:
    """The library: PADDOCK_LIBRARY, else the one in this package, else the system's.

    Raises ImportError when there is none, or one that is too old or too new.
    """
    problems = []
    for place in _places():
        try:
            library = ctypes.CDLL(place)
            abi = library.paddock_abi
        except (OSError, AttributeError) as error:
            problems.append(f"{place}: {error}")
            continue
        if abi() != ABI:
            problems.append(f"{place}: its interface is {abi()}, and {ABI} is needed")
            continue
        missing = [n for n in (*_FUNCTIONS, *_PLAIN) if not hasattr(library, "paddock_" + n)]
        if missing:
            problems.append(f"{place}: it is too old: it has no paddock_{missing[0]}")
            continue
        for name, (gives, takes) in _FUNCTIONS.items():
            function = getattr(library, "paddock_" + name)
            function.restype, function.argtypes = gives, [*takes, _E]
        for name, (gives, takes) in _PLAIN.items():
            function = getattr(library, "paddock_" + name)
            function.restype, function.argtypes = gives, takes
        return library
    raise ImportError("; ".join(problems))
