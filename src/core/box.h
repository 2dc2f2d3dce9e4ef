/* box: every call to a provider, behind the capability that it needs.
 *
 * Nobody else calls through struct provider. A call that the box's provider cannot do fails with
 * PD_UNSUPPORTED, and the text names the provider and what to do instead; what each call means is
 * in core/provider.h. */
#pragma once

#include "core/provider.h"

int box_create(struct provider *p, struct wire_id id, const struct spec *s, void *owner,
               struct box **ret, deadline d, struct pd_err *e);
/* A box_create with this id, under way or about to begin, is to fail soon. Does not wait. */
void box_cancel(struct provider *p, struct wire_id id);
int box_adopt(struct provider *p, struct wire_id id, void *owner, struct box **ret,
              struct pd_err *e);
int box_destroy(struct box *b, struct pd_err *e);
/* Ends every box that no session has, at all providers. */
void boxes_end_strangers(const struct provider_table *t);

/* Also checks the command's flags: workers need PROVIDER_FILES or, with EXEC_REACH, PROVIDER_PORTS;
 * terminals PROVIDER_TERMINAL. */
int box_exec(struct box *b, const struct box_command *c, struct pd_err *e);
/* A thread that listens itself, as provider.h says. Without a provider that can, nobody may. */
bool box_hear_begin(struct box *b);
enum box_heard box_hear(struct box *b, struct wire_id command, struct pollfd *more, unsigned count,
                        deadline d);
void box_hear_end(struct box *b);
int box_signal(struct box *b, struct wire_id command, int signal, deadline d, struct pd_err *e);
int box_kill(struct box *b, struct wire_id command, unsigned group, struct pd_err *e);
/* As provider.h says. PD_UNSUPPORTED where nobody can be held. */
int box_hold(struct box *b, unsigned group, bool held, struct pd_err *e);
int box_forget(struct box *b, struct wire_id command);
int box_sync(struct box *b, deadline d, struct pd_err *e);
/* Without PROVIDER_TREES a group is a number only, and always free again. */
int box_group_is_empty(struct box *b, unsigned group);

int box_terminal(struct box *b, int *ret_near, int *ret_far, struct pd_err *e);
int box_resize(struct box *b, struct wire_id command, int near, uint16_t rows, uint16_t cols,
               struct pd_err *e);
/* Waits as long as the provider's patience says. */
int box_pause(struct box *b, bool paused, struct pd_err *e);
int box_way_out(struct box *b, int ret[2], struct pd_err *e);
int box_get_usage(struct box *b, struct box_usage *ret, struct pd_err *e);
/* Does it run, and would a new one from its image be the same? */
int box_check(struct box *b, deadline d, struct pd_err *e);
enum rung box_rung(const struct box *b);
/* Fills *ret and returns true when the box's places are not those of a jail. */
bool box_place(struct box *b, struct box_place *ret);

/* Roots. `p` may be NULL, for a session whose provider is not configured any more: then nothing is
 * done and they fail. */
int root_remove(struct provider *p, const char *name, struct pd_err *e);
int root_keep(struct provider *p, const char *name, struct pd_err *e);
int root_copy(struct provider *p, struct box *b, const char *from, const char *to, deadline d,
              struct pd_err *e);

/* Descriptors for the next daemon. stash_drop does nothing where nothing can be stashed. */
int stash_put(struct provider *p, const char *key, const int *fds, unsigned count,
              struct pd_err *e);
int stash_fetch(struct provider *p, const char *key, int *ret_fds, unsigned max,
                unsigned *ret_count, deadline d, struct pd_err *e);
void stash_drop(struct provider *p, const char *key);
