/* mcp: the door for agents that speak the Model Context Protocol. docs/mcp.md lists its tools.
 *
 * Streamable HTTP at /mcp: every message is a POST; the answer is one JSON object, or an event
 * stream with progress in front of it. `paddock mcp` is the same on standard input and output: it
 * passes messages on to here.
 *
 * A client's session is a sandbox: its Mcp-Session-Id (or the parameter `thread`) is the thread of
 * a session of user "mcp". Nothing is kept here between requests but what is running just now, so
 * a session outlives the server. */
#pragma once

#include "api/call.h"

#include <stdbool.h>

/* The requests that are running, so that they can be cancelled, and the sessions that clients have
 * ended. */
struct mcp;
struct mcp *mcp_new(void); /* NULL when memory is out */

#define MCP_ID_MAX   256u /* of a request id or a progress token, as JSON */
#define MCP_TEXT_MAX (1u << 20)
/* Pictures of a result: how many, and the bytes of each. */
#define MCP_PICTURES    4u
#define MCP_PICTURE_MAX (1u << 20)

struct mcp_request {
    struct call *c;
    struct fields *message;
    struct fields *params;   /* or NULL */
    char id[MCP_ID_MAX + 1]; /* as JSON; "" for a notification */
    char thread[SESSION_NAME_MAX + 1];
    char client[SESSION_NAME_MAX + 1]; /* whose ids these are: a thread may have several clients */
    char token[MCP_ID_MAX + 1];        /* for progress, as JSON; "" when nobody asked for it */
    bool streams;                      /* the client takes an event stream */
    bool made_anew;                    /* the sandbox was: files of the one before are gone */
    /* While it is in struct mcp's list, under its lock: */
    struct mcp_request *next;
    struct process *process; /* what it runs just now, or NULL */
    bool cancelled;
};

/* A tool's result: text for the model and the same as a JSON object. */
struct mcp_result {
    struct buf text, data;
    struct buf pictures; /* items of the content: `,{...}` each */
    bool is_error;
};

struct mcp_tool {
    const char *name, *title, *description;
    const char *schema; /* of the arguments, JSON */
    const char *result; /* schema of what it gives, JSON */
    const char *hints;  /* annotations, JSON */
    int (*run)(struct mcp_request *m, struct fields *args, struct mcp_result *ret,
               struct pd_err *e);
    bool makes_sandbox; /* itself; the others find one, or one with the defaults is made for them */
};
extern const struct mcp_tool mcp_tools[];
extern const unsigned mcp_tool_count;

/* mcp_session.c */
/* The thread: the one that the client names, else the session that initialize gave it. PD_NOT_FOUND
 * when the client has ended that session. */
int mcp_find_thread(struct mcp_request *m, int begins, struct pd_err *e);
/* Is there a sandbox already? */
int mcp_find(struct mcp_request *m);
/* The session's sandbox, made with the defaults if there is none: m->c->session. */
int mcp_open(struct mcp_request *m, struct pd_err *e);
/* Ends the session with its sandbox. */
int mcp_close(struct mcp_request *m, struct pd_err *e);
/* From here on it can be cancelled, until mcp_end. */
void mcp_begin(struct mcp_request *m);
void mcp_end(struct mcp_request *m);
/* This request runs the process, which ends at once if the request was cancelled before; NULL: it
 * does not any more. */
void mcp_note_running(struct mcp_request *m, struct process *p);
bool mcp_is_cancelled(struct mcp_request *m);
/* Ends what runs for the request that m, a notification, names. */
void mcp_cancel(struct mcp_request *m);

/* mcp.c */
/* Tells the client how far it is, if it asked to be told. */
int mcp_progress(struct mcp_request *m, double done, const char *text, struct pd_err *e);
/* Something for clients and proxies that break off what is silent for long. */
int mcp_keep_alive(struct mcp_request *m, struct pd_err *e);

/* mcp_files.c */
int mcp_resources_list(struct mcp_request *m, struct json *j, struct pd_err *e);
int mcp_resource_read(struct mcp_request *m, struct json *j, struct pd_err *e);

/* The tools, one function each. */
#define TOOL(name)                                                                                 \
    int name(struct mcp_request *m, struct fields *args, struct mcp_result *ret, struct pd_err *e)
TOOL(mcp_run_command);
TOOL(mcp_run_code);
TOOL(mcp_start_process);
TOOL(mcp_check_process);
TOOL(mcp_stop_process);
TOOL(mcp_preview_port);
TOOL(mcp_session_info);
TOOL(mcp_create_sandbox);
TOOL(mcp_read_file);
TOOL(mcp_write_file);
TOOL(mcp_edit_file);
TOOL(mcp_list_files);
TOOL(mcp_search_files);
#undef TOOL
