/* command: commands as the doors know them: the body that starts one, its result, its output as
 * events, and signals by name. exec.c, event_stream.c and processes.c. */
#pragma once

#include "api/call.h"
#include "core/process.h"

/* The body of exec and of starting a process. Strings live as long as the fields. */
struct start_request {
    struct process_request request;
    struct msg_list_writer argv, env;
    struct buf input;
    uint64_t output_max;
    bool detached;
};
int start_request_read(struct call *c, struct fields *f, struct start_request *ret, int background,
                       struct pd_err *e);
void start_request_done(struct start_request *r);
/* The result without its braces: exit_code and so on, without the outputs. */
void result_json(struct json *j, const struct process_info *i);
/* Members that tell how a command was placed; none where no mode was asked for. */
void placement_json(struct json *j, const struct placement *p);
void process_json(struct json *j, const struct process_info *i);
/* Streams both outputs as events from these offsets until the end. */
int stream_events(struct call *c, struct process *p, uint64_t offset[STREAM_COUNT], int end_it,
                  struct pd_err *e);
const char *signal_name(int number);
/* "SIGTERM", "TERM" or a number. */
int signal_parse(const char *text, int *ret, struct pd_err *e);
