/* rules: where a sandbox may connect to.
 *
 * A policy is a text of lines. Whoever makes sandboxes writes it, the gate reads it, and everything
 * in between passes it on:
 *
 *   layer off|list|open    begins the rules of the sandbox, then of its tenant, then the server's
 *   allow RULE             NAME[:PORTS]  *.NAME[:PORTS]  NETWORK[:PORTS]  [NETWORK6]:PORTS
 *   deny RULE              a network; for `open`
 *   private NETWORK        the operator's: addresses that are dialled although they are private
 *   host NAME=ADDRESS[:PORT]   the operator's: where a name or an address really is
 *   resolver ADDRESS[:PORT]    whom names are asked of: three at most, the first one first
 *   secret ENV NAME HOST[:PORT]    the sandbox's: a secret that it may use there (docs/secrets.md)
 *   header HOST[:PORT] NAME SEALED     the sandbox's: a header that requests there get; the gate is
 *                          told the host alone
 *   proxy HOST:PORT [CREDENTIALS]  the sandbox's: a SOCKS5 proxy that everything goes through.
 *                          CREDENTIALS: base64 of user, line feed, password; sealed in the
 *                          sandbox's rules, open in what the gate is told
 *   tenant NAME            whose it is
 *   limit WHAT NUMBER      connections, tenant_connections, starts, questions (a second each),
 *                          rate (bytes a second each way), bytes (in all), loans (connections
 *                          that use secrets, of all sandboxes together)
 *
 * Every layer must agree. In one, allow beats deny. A name without ports means 80 and 443, a
 * network all. A wildcard is one or more whole labels, never the bare name. Pure. */
#pragma once

#include "gate/address.h"

#include <stddef.h>

struct pd_err;
struct buf;

#define RULES_NAME_MAX   253u
#define RULES_TEXT_MAX   320u /* a rule as text, with the NUL */
#define POLICY_LAYERS    3u
#define POLICY_RESOLVERS 3u
#define POLICY_LINES_MAX 4096u
#define POLICY_TEXT_MAX  (96u << 10)

enum egress_mode { EGRESS_OFF, EGRESS_LIST, EGRESS_OPEN, EGRESS_COUNT };

const char *egress_mode_name(enum egress_mode m);
int egress_mode_parse(const char *what, const char *text, enum egress_mode *ret, struct pd_err *e);

/* A host name as it is compared: lower case, no dot at the end. False for what is none: empty or
 * long labels, other characters than letters, digits, - and _, an address in any spelling. */
bool name_normalise(const char *text, size_t len, char ret[RULES_NAME_MAX + 1]);

enum rule_kind { RULE_NAME, RULE_SUFFIX, RULE_NETWORK };

struct rule {
    enum rule_kind kind;
    uint16_t first_port, last_port; /* 0: none given */
    struct cidr net;
    const char *name; /* without the "*."; of the policy's text, or of the caller's buffer */
};

/* Reads one rule; its name is written to `name`. The error names the rule and what would be right.
 */
int rule_parse(const char *text, struct rule *ret, char name[RULES_NAME_MAX + 1], struct pd_err *e);
void rule_text(const struct rule *r, char out[RULES_TEXT_MAX]);
bool rule_has_port(const struct rule *r, uint16_t port);
bool rule_has_name(const struct rule *r, const char *name);

struct layer {
    enum egress_mode mode;
    struct rule *allow, *deny;
    unsigned allow_count, deny_count;
};

/* Where a name or an address really is. */
struct host_entry {
    const char *name; /* "*.NAME": all below it; NULL: the key is an address */
    struct ip key, to;
    uint16_t to_port; /* 0: the one that was asked for */
};

/* A secret of a sandbox: the variable that has its placeholder, its name, and a host that gets it.
 */
#define SECRET_WORD_MAX 63u
#define SECRET_PORT     443u

struct secret_rule {
    char env[SECRET_WORD_MAX + 1], name[SECRET_WORD_MAX + 1];
    char host[RULES_NAME_MAX + 1]; /* normalised */
    uint16_t port;                 /* that it speaks TLS on */
};

/* Reads "ENV NAME HOST[:PORT]". The error names what is wrong. */
int secret_rule_parse(const char *text, struct secret_rule *ret, struct pd_err *e);
/* The next one of a policy that is good, from *text on; false: there is none. */
bool secret_rule_next(const char **text, struct secret_rule *ret);

/* A header that requests to a host get. */
#define HEADER_NAME_MAX  128u
#define HEADER_VALUE_MAX 4096u

struct header_rule {
    char host[RULES_NAME_MAX + 1]; /* normalised */
    uint16_t port;                 /* 0: 80 and 443 */
    char name[HEADER_NAME_MAX + 1];
    const char *sealed; /* its value, of the text that was read */
    size_t sealed_len;
};

/* Reads "HOST[:PORT]" as a header rule has it. The error names what is wrong. */
int header_host_parse(const char *text, struct header_rule *ret, struct pd_err *e);
/* Is it a header that a rule may set? Those that frame a request or name its host are not. */
int header_check(const char *name, const char *value, struct pd_err *e);
/* As secret_rule_next. */
bool header_rule_next(const char **text, struct header_rule *ret);

/* Hosts whose requests are changed on their way, for secrets or by header rules: what a gate needs
 * to know of them. */
struct secret_host {
    const char *name;
    uint16_t port; /* of a header rule 0: 80 and 443 */
    bool is_header;
};

/* Everything goes through a SOCKS5 proxy. */
struct egress_proxy {
    const char *name; /* NULL: `address` says where it is */
    struct ip address;
    uint16_t port; /* 0: there is none */
    const char *credentials;
};

/* Reads "HOST:PORT": `name` is filled where HOST is one, and ret->name points to it. */
int proxy_parse(const char *text, struct egress_proxy *ret, char name[RULES_NAME_MAX + 1],
                struct pd_err *e);

struct egress_limits {
    uint64_t connections, tenant_connections, starts, questions, rate, bytes; /* 0: none */
    uint64_t loans; /* connections that use secrets, of all sandboxes; 0: EGRESS_LOANS */
};

#define EGRESS_CONNECTIONS 256u
#define EGRESS_STARTS      200u
#define EGRESS_QUESTIONS   100u
#define EGRESS_LOANS       1024u

struct egress_policy {
    struct layer layers[POLICY_LAYERS];
    unsigned layer_count;
    struct cidr *privates;
    unsigned private_count;
    struct host_entry *hosts;
    unsigned host_count;
    struct host_entry resolvers[POLICY_RESOLVERS]; /* of which `to` and `to_port` count */
    unsigned resolver_count;
    struct secret_host *secrets;
    unsigned secret_count;
    struct egress_proxy proxy;
    struct egress_limits limits;
    const char *tenant;
    char *text; /* that names point into */
    void *room; /* for all lists */
};

/* Reads a policy; `ret` is for egress_free_policy. The error names the line. */
int egress_parse(const char *text, size_t len, struct egress_policy **ret, struct pd_err *e);
void egress_free_policy(struct egress_policy *p);

/* How a connection may be made. */
enum judged { JUDGED_NO, JUDGED_BY_NAME, JUDGED_BY_ADDRESS };

struct verdict {
    enum judged how;
    const struct rule *rule; /* of the first layer that has one for it; NULL: mode open */
};

/* May the sandbox connect to `port` of `name` (normalised, or NULL: not known), of which it thinks
 * that it is at `to`? By name: the name is to be resolved and dialled, whatever `to` is. */
struct verdict egress_judge(const struct egress_policy *p, const char *name, struct ip to,
                            uint16_t port);
/* May it ask where this name is? */
bool egress_may_ask(const struct egress_policy *p, const char *name);
/* May this address be dialled, for the name that it was found by (NULL: judged by address)? NULL,
 * or why not. `is_local`: the machine's own. */
const char *egress_dial_refused(const struct egress_policy *p, const char *name, struct ip a,
                                uint16_t port, bool is_local);
/* The operator's word for where it is, or NULL. One of the two is looked for. */
const struct host_entry *egress_host(const struct egress_policy *p, const char *name,
                                     const struct ip *a);
/* How a connection goes on whose requests are changed on their way. */
struct changed {
    uint16_t port; /* that the host is spoken to on; 0: an ordinary connection */
    bool is_plain; /* the host is spoken to without TLS */
};

/* Does a connection to this name and port go to a host with secrets or header rules? With secrets
 * TLS goes out also where a client asks for plain HTTP on port 80; else it is as the client has
 * it. */
struct changed egress_changed(const struct egress_policy *p, const char *name, uint16_t port,
                              bool is_tls);
/* Do both have the same proxy, or none? */
bool egress_same_proxy(const struct egress_policy *a, const struct egress_policy *b);
/* What a question for the name of a `host` line is answered: addresses of nobody (192.0.2.0/24),
 * by the line's place, so that they mean the same to every gate. */
struct ip egress_host_address(const struct egress_policy *p, const struct host_entry *h);
