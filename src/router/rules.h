/* rules: which provider makes the sandboxes of whom, as the operator wrote it down.
 *
 * A JSON object, the same in the router's file and in PUT /v1/router; docs/router.md is its manual.
 * Reading is pure and strict: an unknown member, a wrong value or the name of a provider that this
 * server does not have is an error that names the member, the value and what is valid. */
#pragma once

#include "router/breaker.h"
#include "router/command_class.h"
#include "router/share.h"
#include "wire/spec.h"

#include <stdbool.h>
#include <stddef.h>

struct json;
struct pd_err;

#define ROUTER_PROVIDERS_MAX 16u
#define ROUTER_PROVIDER_SIZE 32u
#define ROUTER_NAME_SIZE     64u
#define ROUTER_USER_SIZE     129u
#define ROUTER_RULES_MAX     64u
#define ROUTER_FLAGS_MAX     16u
#define ROUTER_ARMS_MAX      8u
#define ROUTER_HOPS_MAX      2u /* providers that are tried behind the first */
#define ROUTER_TEXT_MAX      (256u << 10)

/* A provider as a decision sees it. */
struct route_provider {
    const char *name;
    enum rung rung;       /* the best that its sandboxes have */
    uint64_t shut_for_ns; /* its breaker lets nothing through for so long; 0: it does */
    const char *unfit;    /* why it cannot make the sandbox in question; NULL: it can */
};

struct router_list {
    char names[ROUTER_PROVIDERS_MAX][ROUTER_PROVIDER_SIZE];
    unsigned count;
};

/* Requests of this tenant, this user and this template; "" is any. */
struct router_filter {
    char tenant[ROUTER_NAME_SIZE], user[ROUTER_USER_SIZE], template_name[ROUTER_NAME_SIZE];
};

struct router_rule {
    char name[ROUTER_NAME_SIZE];
    struct router_filter filter;
    char provider[ROUTER_PROVIDER_SIZE]; /* "": only the fallback is said */
    bool has_fallback;
    struct router_list fallback; /* in place of the one for all */
};

/* A provider for a share of all users. */
struct router_flag {
    char name[ROUTER_NAME_SIZE], salt[ROUTER_NAME_SIZE];
    char provider[ROUTER_PROVIDER_SIZE];
    unsigned share;                 /* of SHARE_ALL */
    bool is_older;                  /* from a variable of an older system, in no file */
    char off[2 * ROUTER_NAME_SIZE]; /* why it does not count; "": it does */
};

struct router_arm {
    char name[ROUTER_NAME_SIZE];
    char provider[ROUTER_PROVIDER_SIZE];
    unsigned weight;
};

/* Stops an experiment when so many percent of an arm's creations, at least so many, have failed;
 * or of its commands. */
struct router_guard {
    unsigned percent, creations, commands; /* 0: there is none */
};

/* Everybody is in one arm, by weight. */
struct router_experiment {
    char name[ROUTER_NAME_SIZE], salt[ROUTER_NAME_SIZE];
    struct router_arm arms[ROUTER_ARMS_MAX];
    unsigned count; /* 0: there is none */
    struct router_guard guard;
    char stopped[160]; /* why the guard has stopped it; "": it has not. Of no file */
};

/* Sandboxes of a share of all users whose commands run a second time at another provider. */
struct router_shadow {
    char name[ROUTER_NAME_SIZE], salt[ROUTER_NAME_SIZE]; /* name "": there is none */
    struct router_filter filter;
    char provider[ROUTER_PROVIDER_SIZE];
    unsigned share; /* of SHARE_ALL */
};

/* The least isolation for a command of each class, in the order of enum command_class; RUNG_COUNT
 * stands for the most that there is. */
#define ROUTER_COMMANDS_DEFAULT                                                                    \
    {                                                                                              \
        RUNG_NONE, RUNG_NONE, RUNG_BASIC, RUNG_BASIC, RUNG_COUNT                                   \
    }

/* All zero, but for ROUTER_RULES_INIT, is a router that knows the default provider alone. */
struct router_rules {
    char usual[ROUTER_PROVIDER_SIZE]; /* "default"; "": the server's first provider */
    struct router_list disabled;      /* get no new sandboxes */
    struct router_rule rules[ROUTER_RULES_MAX];
    unsigned rule_count;
    struct router_flag flags[ROUTER_FLAGS_MAX];
    unsigned flag_count;
    struct router_experiment experiment;
    struct router_shadow shadow;
    struct router_list fallback;
    bool allow_weaker; /* a request may ask for a fallback that isolates less */
    struct breaker_limits breaker;
    enum rung commands[COMMAND_CLASSES];
};

#define ROUTER_RULES_INIT                                                                          \
    ((struct router_rules){.breaker = BREAKER_LIMITS_DEFAULT, .commands = ROUTER_COMMANDS_DEFAULT})

/* Writes *ret only on success; *ret may be large, so it is not returned by value. `providers` are
 * those of this server. PD_INVALID otherwise. */
int router_rules_parse(const char *text, size_t len, const struct route_provider *providers,
                       unsigned count, struct router_rules *ret, struct pd_err *e);
/* As an object that router_rules_parse takes; flags of older variables are left out. */
void router_rules_json(const struct router_rules *r, struct json *j);

/* Is there a provider of this name in `list`? */
bool router_list_has(const struct router_list *list, const char *name);

/* Providers that Paddock has a name for, configured or not, and the rung that each can be relied
 * on for. NULL: the name is unknown. */
struct known_provider {
    const char *name;
    enum rung rung;
};
const struct known_provider *known_provider_find(const char *name);
const struct known_provider *known_provider_at(unsigned i); /* NULL behind the last */
