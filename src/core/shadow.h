/* shadow: commands of some sandboxes run a second time, at another provider, to see whether they do
 * the same there. For the session layer alone.
 *
 * Which sandboxes, and where, is the router's business (`shadow` of its rules). Nobody waits for a
 * shadow: its commands go through a short queue to a thread of their own, what finds no room is
 * left out, and its failures are counted and nothing else. */
#pragma once

struct pd_err;
struct process;
struct process_request;
struct route_question;
struct session;
struct sessions;

int shadows_start(struct sessions *all, struct pd_err *e);
/* The thread has ended when this returns. Shadows are left: the next server ends them. */
void shadows_stop(struct sessions *all);
void shadows_free(struct sessions *all);

/* Of a sandbox that was just made and has run nothing: gets it a shadow, if the rules say so. */
void shadow_choose(struct session *s, const struct route_question *q);
/* A command is about to start, and its end is to come; or it has not started after all. */
void shadow_command(struct process *p, const struct process_request *r);
void shadow_cancel(struct process *p);
/* With the locks of session and process held. */
void shadow_ended(struct process *p);
/* Something else than a command changes the sandbox: its shadow cannot follow any more. */
void shadow_give_up(struct session *s);
