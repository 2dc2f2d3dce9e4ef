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

#include "api/api.h"

struct mcp_running;

/* What is running, so that it can be cancelled. */
struct mcp;
struct mcp *mcp_new(void); /* NULL when memory is out */
void mcp_free(struct mcp *m);

#define MCP_ID_MAX   256u /* of a request id or a progress token, as JSON */
#define MCP_TEXT_MAX (1u << 20)

struct mcp_request {
    struct call *c;
    struct fields *params;   /* or NULL */
    char id[MCP_ID_MAX + 1]; /* as JSON; "" for a notification */
    char thread[SESSION_NAME_MAX + 1];
    char token[MCP_ID_MAX + 1]; /* for progress, as JSON; "" when nobody asked for it */
    int streams;                /* the client takes an event stream */
    int made_anew;              /* the sandbox was: files of the one before are gone */
};

/* What a tool gives back: text for the model and the same as a JSON object. */
struct mcp_result {
    struct buf text, data;
    int is_error;
};

struct mcp_tool {
    const char *name, *title, *description;
    const char *schema; /* of the arguments, JSON */
    const char *hints;  /* annotations, JSON */
    int (*run)(struct mcp_request *m, struct fields *args, struct mcp_result *ret,
               struct pd_err *e);
};
extern const struct mcp_tool mcp_tools[];
extern const unsigned mcp_tool_count;

/* The session's sandbox, made if there is none: m->c->session. */
int mcp_open(struct mcp_request *m, struct pd_err *e);
/* Tells the client how far it is, if it asked to be told. */
int mcp_progress(struct mcp_request *m, double done, const char *text, struct pd_err *e);
/* Notes that this request runs the process, until it is told that it does not any more (NULL). */
int mcp_note_running(struct mcp_request *m, struct process *p, struct pd_err *e);

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
TOOL(mcp_read_file);
TOOL(mcp_write_file);
TOOL(mcp_edit_file);
TOOL(mcp_list_files);
TOOL(mcp_search_files);
#undef TOOL
