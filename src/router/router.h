/* router: the rules that hold now, and how each provider has done lately.
 *
 * The deciding itself is route_decide (decide.h); here is what lasts between two decisions: the
 * rules, which a reload or PUT /v1/router replaces as a whole or not at all, a breaker for each
 * provider, and counts for each arm of the experiment. Any thread may call; a lock is held for the
 * length of a decision. */
#pragma once

#include "router/decide.h"
#include "router/parity.h"

struct buf;
struct json;
struct router;

/* Reads the rules from `file`, if it is there, and the older names from `env`, which stays the
 * caller's. `providers` are those of the server, in its order, here and in every call below: only
 * their rungs may change. To be freed with router_free. */
struct router *router_new(const char *file, const char *const *env,
                          const struct route_provider *providers, unsigned count, struct pd_err *e);
void router_free(struct router *r);

/* Reads the file again. -1: the rules are as they were. */
int router_reload(struct router *r, const struct route_provider *providers, unsigned count,
                  struct pd_err *e);
/* Takes these rules and writes them to the file, for good: it is on the disk when this returns.
 * -1: neither has changed. */
int router_put(struct router *r, const char *text, size_t len,
               const struct route_provider *providers, unsigned count, struct pd_err *e);

/* route_decide, with the rules and breakers of now. `r` NULL: without any rule. */
int router_explain(struct router *r, const struct route_provider *providers, unsigned count,
                   const struct route_question *q, struct decision *ret, struct buf *steps,
                   struct pd_err *e);
/* The same for a sandbox that is made now: router_ended must follow. */
int router_choose(struct router *r, const struct route_provider *providers, unsigned count,
                  const struct route_question *q, struct decision *ret, struct pd_err *e);
/* For a command in a sandbox that lives: the least isolation that it needs (of `command`, or at
 * least `least` without one), and the cheapest provider that has it. `r` NULL: without any rule. */
int router_for_command(struct router *r, const struct route_provider *providers, unsigned count,
                       const struct command_verdict *command, enum rung least, enum rung *ret_need,
                       unsigned *ret_provider, struct pd_err *e);
/* A provider is tried that decision.next named. */
void router_begun(struct router *r, unsigned provider);
/* The creation at d->provider took so long. `why` NULL: it was made. Errors that are the request's
 * own fault do not count against the provider, nor do those with
 * `sys` ENOTCONN: it was not there to be asked, and is being started again. True when the guard has
 * stopped the experiment by it. */
bool router_ended(struct router *r, const struct decision *d, uint64_t ns,
                  const struct pd_err *why);
/* One that was there already was given out, from the pool: that says nothing of the provider. */
void router_served(struct router *r, const struct decision *d, uint64_t ns);
/* A command has ended in a sandbox that was made in this arm; `failed`: by the provider's fault.
 * True when the guard has stopped the experiment by it. */
bool router_command_ended(struct router *r, const char *arm, bool failed, uint64_t ns);
/* Shall the commands of this sandbox run a second time? Where is in *ret. Never where there is less
 * isolation than `rung`, which the sandbox has. The answer is the number of the rule, which is
 * another one when it is changed; 0: no. */
unsigned router_shadow(struct router *r, const struct route_provider *providers, unsigned count,
                       const struct route_question *q, const char *primary, enum rung rung,
                       unsigned *ret);
/* Does that rule still hold? */
bool router_shadow_holds(struct router *r, unsigned rule);
/* Of one that does not hold any more nothing is counted. */
void router_note_shadow(struct router *r, unsigned rule, enum parity_event event, unsigned differs);
/* May another provider be tried after this error? */
bool router_is_failure(const struct pd_err *why);

/* Members of an object: rules (with `with_rules`), breakers, the experiment's arms, the shadow,
 * flags of older names. */
void router_json(struct router *r, const struct route_provider *providers, unsigned count,
                 bool with_rules, struct json *j);
/* Counters of the experiment's arms and of the shadow, in the format of Prometheus. */
void router_metrics(struct router *r, struct buf *out);
