/* decide: which provider makes a sandbox, and why.
 *
 * Pure: the rules, the providers and the question in, a choice with a sentence out. No lock, no
 * clock, no memory is taken. The order:
 *
 *     what the request names (mode local is provider local)  >  the first rule that fits  >  the
 *     cheapest for the command, if one is given or the mode is auto  >  flags, by share  >  the arm
 *     of the experiment  >  the default
 *
 * Mode sandbox has no provider without isolation, whoever says so. A choice that cannot make the
 * sandbox in question (route_provider.unfit: it has an image, or has none) is replaced by the first
 * that can, unless the request or a rule names it.
 *
 * A choice that is disabled, or whose breaker is open, is replaced by its fallback: the matching
 * rule's list, else the list for all, else (behind a flag or an arm) the default. A fallback never
 * isolates less than the first choice would, unless rules and request both allow it. What a request
 * names falls back only where a rule that fits has a list. */
#pragma once

#include "router/mode.h"
#include "router/rules.h"

struct buf;

/* Sentences are kept with sessions. */
#define ROUTE_REASON_SIZE 128u

struct route_question {
    const char *asked;                         /* a provider's name; NULL or "auto": none */
    const char *tenant, *user, *template_name; /* NULL: none */
    const char *key; /* that shares and arms go by; NULL: the user, else the tenant */
    const struct command_verdict *command; /* the line that it is for; or NULL */
    enum run_mode mode;
    bool allow_weaker; /* the request's half of the permission */
};

enum route_by {
    ROUTE_BY_REQUEST,
    ROUTE_BY_RULE,
    ROUTE_BY_COMMAND,
    ROUTE_BY_FLAG,
    ROUTE_BY_ARM,
    ROUTE_BY_DEFAULT
};

struct decision {
    unsigned provider;                          /* index */
    unsigned next[ROUTER_HOPS_MAX], next_count; /* to be tried when it cannot make one */
    enum route_by by;
    char name[ROUTER_NAME_SIZE]; /* of the rule, flag or arm; "" */
    int arm;                     /* index in the experiment, -1: none */
    bool is_fallback;
    char reason[ROUTE_REASON_SIZE];
};

/* PD_INVALID: no such provider, with the names of those that there are. PD_DENIED: it is switched
 * off. PD_CAPACITY: it fails and is left alone for a while. PD_ISOLATION: nothing isolates a
 * command enough. `steps` (or NULL) gets a line about
 * each step. `count` is at least 1. */
int route_decide(const struct router_rules *rules, const struct route_provider *providers,
                 unsigned count, const struct route_question *q, struct decision *ret,
                 struct buf *steps, struct pd_err *e);
const char *route_by_name(enum route_by by);
bool route_fits(const struct route_question *q, const struct router_filter *f);
/* What its shares and arms go by; "" when it says nothing. Never NULL. */
const char *route_key(const struct route_question *q);

/* The least isolation that a command may run with, and the cheapest provider that has it; -1 with
 * PD_ISOLATION when none has. `count` is at least 1. */
int route_for_rung(const struct router_rules *rules, const struct route_provider *providers,
                   unsigned count, enum rung need, const char *why, unsigned *ret,
                   struct pd_err *e);
enum rung route_rung_of(const struct router_rules *rules, const struct route_provider *providers,
                        unsigned count, const struct command_verdict *command);
