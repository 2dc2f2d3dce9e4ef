/* config: how the server is set up.
 *
 * There is one table of keys (config_table.c): name, type, default, range, whether it can be
 * reloaded, older names, help. From it come
 *
 *     the defaults  <  a file of `key = value`  <  PADDOCK_KEY in the environment  <  --key VALUE
 *
 * the print-out of `paddock config`, the help of `paddock serve` and docs/configuration.md. A
 * value that is wrong anywhere is an error that names the place, the key and what is valid; so is
 * an unknown key in the file and an unknown flag.
 *
 * A loaded configuration does not change and may be read by any thread. A reload makes a new one;
 * the old one stays valid until its owner frees it. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "config/recipe.h"
#include "wire/ceilings.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONFIG_LIST_MAX     256 /* of any list; most keys have fewer */
#define CONFIG_KEYS_MAX     160
#define CONFIG_FILE_MAX     (256u << 10)
#define CONFIG_DOMAIN_SIZE  264 /* a host name, a colon, a port */
#define CONFIG_DEFAULT_FILE "/etc/paddock/paddock.conf"

struct config_list {
    char *items[CONFIG_LIST_MAX];
    unsigned count;
};

enum config_storage { CONFIG_STORAGE_AUTO, CONFIG_STORAGE_DISK, CONFIG_STORAGE_MEMORY };
enum config_pull { CONFIG_PULL_NEVER, CONFIG_PULL_MISSING, CONFIG_PULL_ALWAYS };

enum config_source {
    CONFIG_FROM_DEFAULT,
    CONFIG_FROM_OTHERS, /* worked out from the host or from other keys */
    CONFIG_FROM_FILE,
    CONFIG_FROM_ALIAS,
    CONFIG_FROM_ENVIRONMENT,
    CONFIG_FROM_FLAG
};

struct config {
    /* Where it listens and lives. Strings are never NULL; "" means none. */
    struct config_list listen, listen_tls;
    char *unix_socket;
    char *state_dir, *run_dir, *keeper_socket;
    char *tls_cert, *tls_key;
    char *domain;
    struct config_list allowed_hosts, allowed_origins;
    uint64_t console;  /* on or off */
    char *console_dir; /* "": what the program carries inside */
    char *user;        /* "": paddock if there is one, else nobody */

    /* Sandboxes. */
    struct config_list providers;
    struct config_list backends; /* NAME=PROGRAM */
    char *sandbox_mode;     /* provider for requests that name none, or auto, sandbox: the first */
    uint64_t local_allowed; /* on or off */
    char *docker_host, *docker_runtime; /* "": as usual */
    char *fargate_region, *fargate_endpoint, *fargate_cluster, *fargate_task_definition;
    char *fargate_container, *fargate_subnets, *fargate_security_groups;
    char *fargate_target_group, *fargate_balancer, *fargate_network;
    uint64_t fargate_port;
    uint64_t fargate_public_ip, fargate_spot; /* on or off */
    char *cloudrun_project, *cloudrun_region, *cloudrun_job, *cloudrun_container;
    char *cloudrun_listen, *cloudrun_call, *cloudrun_network, *cloudrun_endpoint;
    char *cloudrun_bucket, *cloudrun_storage_endpoint;
    char *cloudrun_credentials_file, *cloudrun_token_file, *cloudrun_ca_file;
    uint64_t cloudrun_max_life_s;
    char *docker_cert_path;
    uint64_t box_lease_ms;
    char *e2b_api_key_file, *e2b_domain, *e2b_template; /* "": as usual */
    char *e2b_api_url, *e2b_sandbox_url, *e2b_ca_file;
    char *daytona_api_key_file, *daytona_api_url, *daytona_target; /* "": as usual */
    char *daytona_snapshot, *daytona_git_hosts, *daytona_ca_file;
    uint64_t daytona_max_life_ms, daytona_cpu, daytona_memory_bytes, daytona_disk_bytes;
    char *kubernetes_config, *kubernetes_context, *kubernetes_namespace, *kubernetes_box_image;
    char *kubernetes_pull_secret, *kubernetes_runtime_class, *kubernetes_service_account;
    char *kubernetes_node_selector;
    uint64_t kubernetes_max_life_ms, kubernetes_wait_ms, kubernetes_disk_bytes;
    uint64_t kubernetes_network_policy; /* on or off */
    char *registry_auth;                /* "": none */
    char *default_image;                /* "": none */
    uint64_t image_pull;                /* enum config_pull */
    uint64_t image_store_max;           /* bytes that the store of images may hold; 0: any */
    struct config_list registries;      /* NAME=URL, checked: where registries are instead */
    struct config_list images_allowed;  /* patterns, checked; none: all */
    struct config_list tenant_images;   /* TENANT=PATTERN, checked */
    uint64_t max_sandboxes, max_sandboxes_per_tenant, max_snapshots_per_tenant;
    uint64_t queue_max, queue_timeout_ms;
    uint64_t pool_min, pool_max;
    uint64_t image_pool, image_pool_max, image_pool_ttl_ms;
    uint64_t idle_timeout_ms;
    char *default_template;
    struct config_list templates; /* NAME=TEMPLATE, checked */
    char *template_dir;           /* "": none */
    struct recipes recipes;       /* those of the program and of template_dir */
    uint64_t memory_bytes, pids, cpu_milli, disk_bytes, files;
    struct ceilings ceilings;         /* of every tenant that has none of its own */
    struct config_list tenant_limits; /* TENANT:KEY=VALUE..., checked */
    uint64_t storage;                 /* enum config_storage */

    /* The way out of sandboxes. */
    uint64_t egress; /* enum egress_mode of gate/rules.h: the most that a sandbox may have */
    struct config_list egress_allow, egress_private, egress_hosts, egress_resolvers;
    char *egress_ca;                  /* "": the system's */
    struct config_list tenant_egress; /* TENANT=MODE, checked */
    uint64_t egress_connections, egress_tenant_connections, egress_secret_connections;
    uint64_t egress_rate, egress_bytes; /* 0: no limit */

    /* Commands. */
    uint64_t exec_timeout_ms; /* 0: none */
    uint64_t contexts_max;    /* of a sandbox */
    uint64_t contexts_warm_pool;
    struct config_list contexts_warm; /* modules of Python, checked */
    uint64_t prepared_shell;          /* on or off */
    uint64_t output_max_bytes, spool_max_bytes;
    uint64_t output_kept_bytes, output_kept_bytes_per_tenant, output_kept_bytes_in_all;

    /* Requests. Rates are per tenant and second; 0: no limit. */
    uint64_t max_connections, max_active;
    uint64_t max_open_files; /* 0: as many as the system allows */
    uint64_t requests_per_s, creates_per_s, burst;

    /* Operation. */
    uint64_t log_level, log_format; /* enum log_level, enum log_format */
    uint64_t audit;                 /* 0 or 1 */
    uint64_t audit_max_bytes, audit_keep;
    uint64_t drain_timeout_ms;

    /* Private: where each value came from, what there is to say, and the file that was read. */
    struct {
        enum config_source source;
        unsigned line;     /* of the file */
        const char *alias; /* the older name that was used */
    } origin[CONFIG_KEYS_MAX];
    struct buf notes;
    char *file;
    struct config *older; /* the one that a reload put this in the place of; freed with it */
};

struct config_input {
    const char *file;           /* NULL: --config, PADDOCK_CONFIG or CONFIG_DEFAULT_FILE */
    const char *const *environ; /* ends with NULL; may be NULL */
    const char *const *argv;    /* flags alone, without the command; may be NULL */
    int argc;
};

/* Everything from all sources, or NULL. A file that was named must be there; the default one need
 * not. To be freed with config_free. */
struct config *config_load(const struct config_input *in, struct pd_err *e);
/* Reads the sources again. Keys that need a restart keep the value of `now`. `report` gets one
 * line per key that changed or would need a restart, without a newline at the end; it is empty
 * when nothing changed. NULL when anything is wrong: then `now` goes on to hold. */
struct config *config_reload(const struct config *now, const struct config_input *in,
                             struct buf *report, struct pd_err *e);
void config_free(struct config *c);

/* What the server is called by clients that speak TLS: DOMAIN, with the port of the first address
 * of listen_tls unless that is 443. "" when no address is there, or `size` is too small
 * (CONFIG_DOMAIN_SIZE is not). */
void config_public_domain(const struct config *c, char *out, size_t size);
/* The port at the end of an address to listen on; 0 when there is none. */
unsigned config_port(const char *address);
/* The template that `templates` has under this name; NULL when there is none. Valid as long as c.
 */
const char *config_template(const struct config *c, const char *name);

/* The most that a sandbox of this tenant may have: the server's ceilings, with those that
 * `tenant_limits` has for it in their place. */
struct ceilings config_ceilings(const struct config *c, const char *tenant);

/* The most that a sandbox of this tenant may have as a way out: EGRESS_OFF, LIST or OPEN. */
unsigned config_egress(const struct config *c, const char *tenant);
/* The part of its rules that is the operator's, in the format of gate/rules.h; resolvers only as
 * far as they are set. */
void config_egress_policy(const struct config *c, const char *tenant, struct buf *out);

/* May a sandbox of this tenant be made from the image ("": none was asked for)? PD_DENIED names the
 * image and the setting; PD_INVALID: there are patterns, and it is no reference. The server's own
 * default_image is always allowed. */
int config_check_image(const struct config *c, const char *tenant, const char *image,
                       struct pd_err *e);
/* An image that is fetched with a tenant's own credentials has a name of that tenant alone: writes
 * it for this source. Nobody else may have it by that (config_check_image), nor see it. */
int config_own_image(const char *tenant, const char *image, char *out, size_t size,
                     struct pd_err *e);
/* Is it such a name, of any tenant? */
bool config_is_own_image(const char *image);
/* Is there a tenant who may have it? */
bool config_allows_image(const struct config *c, const char *image);

/* Calls `each` for every key whose name begins with `prefix` and that is not empty, with the rest
 * of its name and its value: as the file has it, but sizes in bytes and times in whole seconds. */
typedef void config_told(void *context, const char *name, const char *value);
void config_each_of(const struct config *c, const char *prefix, config_told *each, void *context);

/* For people: every key with its value and source, older names in use, notes. */
void config_print(const struct config *c, struct buf *out);
void config_print_json(const struct config *c, struct buf *out);
/* One line per thing that the operator should know (older names, ignored variables); may be "". */
const char *config_notes(struct config *c);

/* The keys as help: for a terminal, as scdoc for a man page, or as rows of a Markdown table. */
enum config_help { CONFIG_HELP_FLAGS, CONFIG_HELP_SCDOC, CONFIG_HELP_MARKDOWN };
void config_help(enum config_help how, struct buf *out);

/* The file's grammar, pure: calls `each` for every `key = value`, in order; stops when it fails.
 * Comments begin with # at the start of a line or behind a blank; a value may be in double quotes,
 * and must be if it has blanks at its ends or a comment sign. `name` is for errors. */
typedef int config_each(void *arg, unsigned line, const char *key, const char *value,
                        struct pd_err *e);
int config_parse(const char *name, const char *text, size_t len, config_each *each, void *arg,
                 struct pd_err *e);
