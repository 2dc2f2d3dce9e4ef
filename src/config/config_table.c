/* The table of keys, and how a value of each type is read, shown, copied and freed. */
#include "config/config_table.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/parse.h"
#include "wire/spec.h"

#include <inttypes.h>

#define TEXT_MAX   4096
#define LIST_USUAL 32u
#define DAY_MS     (86400 * UINT64_C(1000))
#define MIB        (UINT64_C(1) << 20)

static const char *const pulls[] = {"never", "missing", "always", NULL};
static const char *const egress_modes[] = {"off", "list", "open", NULL};
static const char *const storages[] = {"auto", "disk", "memory", NULL};
static const char *const levels[] = {"debug", "info", "warn", "error", NULL};
static const char *const formats[] = {"text", "json", NULL};

#define AT(member) offsetof(struct config, member)

/* Defaults of the limits are LIMITS_DEFAULT of wire/spec.h; a test compares them. */
const struct config_key config_keys[] = {
    {"listen", CONFIG_LIST, AT(listen), "127.0.0.1:8090",
     .help = "addresses to listen on: `IPV4:PORT`, `[IPV6]:PORT` or `unix:PATH`"},
    {"listen_tls", CONFIG_LIST, AT(listen_tls), "",
     .help = "addresses that speak TLS with tls_cert and tls_key: `IPV4:PORT` or `[IPV6]:PORT`; "
             "those of listen are plain then"},
    {"unix_socket", CONFIG_PATH, AT(unix_socket), "",
     .help = "socket for clients of this host; default `paddock.sock` in run_dir; `none` for none"},
    {"state_dir", CONFIG_PATH, AT(state_dir), "",
     .help = "database, spools, audit log; default `/var/lib/paddock`, without root "
             "`~/.local/share/paddock`"},
    {"run_dir", CONFIG_PATH, AT(run_dir), "",
     .help = "sockets; default `/run/paddock`, without root `$XDG_RUNTIME_DIR/paddock`; `run` in a "
             "state_dir that is not the usual one"},
    {"keeper_socket", CONFIG_PATH, AT(keeper_socket), "",
     .help = "where the keeper listens; default `keeper.sock` in run_dir"},
    {"tls_cert", CONFIG_PATH, AT(tls_cert), "",
     .help = "certificate chain (PEM), for listen_tls; without listen_tls every TCP address of "
             "listen speaks TLS"},
    {"tls_key", CONFIG_PATH, AT(tls_key), "", .help = "private key of the certificate (PEM)"},
    {"domain", CONFIG_TEXT, AT(domain), "localhost", 1, 253,
     .help = "sandbox ports answer at `PORT-ID.DOMAIN`"},
    {"allowed_hosts", CONFIG_LIST, AT(allowed_hosts), "", .reloadable = 1,
     .help = "host names that requests may be for, besides the domain, localhost and the addresses "
             "that it listens on"},
    {"allowed_origins", CONFIG_LIST, AT(allowed_origins), "", .reloadable = 1,
     .help = "origins whose pages may open WebSockets, such as `https://console.example`"},
    {"console", CONFIG_SWITCH, AT(console), "on", .reloadable = 1,
     .help = "the console in the browser, at `/`"},
    {"console_dir", CONFIG_PATH, AT(console_dir), "", .reloadable = 1,
     .help = "directory whose files clients of this host get as the console, for those who change "
             "it: `web` of the sources"},
    {"user", CONFIG_TEXT, AT(user), "", 0, 32,
     .help = "who the server becomes when root starts it; default `paddock` if there is such a "
             "user, else a uid from 61184 to 65519 that nobody else has"},

    {"providers", CONFIG_LIST, AT(providers), "jail",
     .help = "what sandboxes can be made of here, by name; `GET /v1/providers` tells what each can "
             "do"},
    {"backends", CONFIG_LIST, AT(backends), "", .max = 4,
     .help = "providers that programs of yours make, as `NAME=PROGRAM`; `providers` has to name "
             "them, too; they count as isolation `none`"},
    {"sandbox_mode", CONFIG_TEXT, AT(sandbox_mode), "auto", 0, 31,
     .aliases = {"SANDBOX_MODE", "SANDBOX_PROVIDER", "STIGMER_EXECUTION_MODE"},
     .help = "provider of sandboxes for which none was asked, one of providers; `auto` and "
             "`sandbox` stand for the first of them"},
    {"local_allowed", CONFIG_SWITCH, AT(local_allowed), "off",
     .help =
         "whether provider `local` may be used, which isolates nothing: commands run as a plain "
         "user of this machine"},
    {"docker_host", CONFIG_TEXT, AT(docker_host), "", 0, 255,
     .help = "where the engine of providers `docker` and `podman` listens, `unix://PATH`, or on "
             "another machine `tcp://HOST:PORT` (docker); default DOCKER_HOST (podman: "
             "CONTAINER_HOST), then its usual socket"},
    {"docker_cert_path", CONFIG_TEXT, AT(docker_cert_path), "", 0, 250,
     .help = "directory with `ca.pem`, `cert.pem` and `key.pem` for an engine on another machine; "
             "read by the broker alone; default DOCKER_CERT_PATH"},
    {"box_lease_s", CONFIG_SECONDS, AT(box_lease_ms), "900", 10000, 30 * DAY_MS,
     .help = "how long a sandbox on another machine waits for this server when it cannot be "
             "reached; then it ends itself"},
    {"kubernetes_config", CONFIG_PATH, AT(kubernetes_config), "", 0, 500,
     .help =
         "kubeconfig of provider `kubernetes`, read by the broker alone; default KUBECONFIG, in "
         "a pod its service account, else `~/.kube/config`"},
    {"kubernetes_context", CONFIG_TEXT, AT(kubernetes_context), "", 0, 200,
     .help = "context of the kubeconfig; default its current one"},
    {"kubernetes_namespace", CONFIG_TEXT, AT(kubernetes_namespace), "", 0, 63,
     .help = "namespace of the pods; default the context's, in a pod its own, else `default`"},
    {"kubernetes_box_image", CONFIG_TEXT, AT(kubernetes_box_image), "", 0, SPEC_IMAGE_MAX,
     .help = "image that has `/paddock-box`, which is copied from it into each pod; needed by "
             "provider `kubernetes`"},
    {"kubernetes_pull_secret", CONFIG_TEXT, AT(kubernetes_pull_secret), "", 0, 253,
     .help = "secret of the namespace with the credentials of registries"},
    {"kubernetes_runtime_class", CONFIG_TEXT, AT(kubernetes_runtime_class), "", 0, 253,
     .help = "runtime class of the pods, such as `gvisor`; default the cluster's own"},
    {"kubernetes_service_account", CONFIG_TEXT, AT(kubernetes_service_account), "", 0, 253,
     .help = "service account of the pods, whose token they do not get; default the namespace's"},
    {"kubernetes_node_selector", CONFIG_TEXT, AT(kubernetes_node_selector), "", 0, 500,
     .help = "labels of nodes that pods may run on, as `KEY=VALUE,KEY=VALUE`"},
    {"kubernetes_max_life_s", CONFIG_SECONDS, AT(kubernetes_max_life_ms), "86400", 60000,
     365 * DAY_MS, .help = "after which the cluster itself ends a pod, whatever this server does"},
    {"kubernetes_wait_s", CONFIG_SECONDS, AT(kubernetes_wait_ms), "60", 0, 3600000,
     .help =
         "how long a pod may wait for a node that has room, as where nodes are added on demand"},
    {"kubernetes_disk_bytes", CONFIG_SIZE, AT(kubernetes_disk_bytes), "10G", 0, SPEC_DISK_MAX,
     .help = "disk that a pod may use before the cluster evicts it; 0: the cluster's own limit"},
    {"kubernetes_network_policy", CONFIG_SWITCH, AT(kubernetes_network_policy), "on",
     .help =
         "whether the server makes the policy that keeps its pods from the network; `off` where "
         "the namespace has one of its own"},
    {"e2b_api_key_file", CONFIG_TEXT, AT(e2b_api_key_file), "", 0, 250,
     .help = "file with the API key of provider `e2b`; read by the broker alone; default the "
             "variable E2B_API_KEY"},
    {"e2b_domain", CONFIG_TEXT, AT(e2b_domain), "", 0, 250,
     .help = "whose sandboxes those of `e2b` are; default E2B_DOMAIN, then `e2b.app`"},
    {"e2b_template", CONFIG_TEXT, AT(e2b_template), "", 0, 250,
     .help = "template of sandboxes of `e2b`; default `base`"},
    {"e2b_api_url", CONFIG_TEXT, AT(e2b_api_url), "", 0, 250,
     .help = "its API; default E2B_API_URL, then `https://api.` and the domain"},
    {"e2b_sandbox_url", CONFIG_TEXT, AT(e2b_sandbox_url), "", 0, 250,
     .help =
         "one address for all its sandboxes; default E2B_SANDBOX_URL, then a host of the domain "
         "for each"},
    {"e2b_ca_file", CONFIG_TEXT, AT(e2b_ca_file), "", 0, 250,
     .help = "authorities to trust there instead of the system's"},
    {"daytona_api_key_file", CONFIG_TEXT, AT(daytona_api_key_file), "", 0, 250,
     .help = "file with the API key of provider `daytona`; read by the broker alone; default the "
             "variable DAYTONA_API_KEY"},
    {"daytona_api_url", CONFIG_TEXT, AT(daytona_api_url), "", 0, 250,
     .help = "its API; default DAYTONA_API_URL, then DAYTONA_SERVER_URL, then "
             "`https://app.daytona.io/api`"},
    {"daytona_target", CONFIG_TEXT, AT(daytona_target), "", 0, 250,
     .help = "region of its sandboxes; default DAYTONA_TARGET, then the organization's"},
    {"daytona_snapshot", CONFIG_TEXT, AT(daytona_snapshot), "", 0, 250,
     .help = "snapshot of sandboxes for which no image was asked; default Daytona's own"},
    {"daytona_cpu", CONFIG_COUNT, AT(daytona_cpu), "0", 0, 1024,
     .help = "cores of its sandboxes that are made from an image; 0: as Daytona has it"},
    {"daytona_memory_bytes", CONFIG_SIZE, AT(daytona_memory_bytes), "0", 0, SPEC_MEMORY_MAX,
     .help = "memory of those, rounded up to whole GB; 0: as Daytona has it"},
    {"daytona_disk_bytes", CONFIG_SIZE, AT(daytona_disk_bytes), "0", 0, SPEC_DISK_MAX,
     .help = "disk of those, likewise"},
    {"daytona_git_hosts", CONFIG_TEXT, AT(daytona_git_hosts), "", 0, 500,
     .help = "hosts that `git_url` may name, with commas between; a sandbox reaches one of them, "
             "and nothing else, until its repository is cloned"},
    {"daytona_max_life_s", CONFIG_SECONDS, AT(daytona_max_life_ms), "86400", 0, 365 * DAY_MS,
     .help = "after which Daytona itself deletes a sandbox, whatever this server does, in whole "
             "minutes; 0: never"},
    {"daytona_ca_file", CONFIG_TEXT, AT(daytona_ca_file), "", 0, 250,
     .help = "authorities to trust there instead of the system's"},
    {"docker_runtime", CONFIG_TEXT, AT(docker_runtime), "", 0, 63,
     .help = "runtime of the engine's containers, such as `runsc`; default the engine's own"},
    {"registry_auth", CONFIG_TEXT, AT(registry_auth), "", 0, 250,
     .help = "file with the credentials of registries, as `docker login` writes it; read by the "
             "broker alone, for provider jail by a process that becomes nobody"},
    {"fargate_region", CONFIG_TEXT, AT(fargate_region), "", 0, 39,
     .help = "region of provider `fargate`; default AWS_REGION, then the profile's"},
    {"fargate_endpoint", CONFIG_TEXT, AT(fargate_endpoint), "", 0, 250,
     .help = "address of AWS's APIs, for a private endpoint; default AWS_ENDPOINT_URL, then AWS's "
             "own"},
    {"fargate_cluster", CONFIG_TEXT, AT(fargate_cluster), "", 0, 255,
     .help = "ECS cluster of tasks; default `default`"},
    {"fargate_task_definition", CONFIG_TEXT, AT(fargate_task_definition), "", 0, 255,
     .help = "task definition that sandboxes are made of: `FAMILY`, `FAMILY:REVISION` or its ARN"},
    {"fargate_container", CONFIG_TEXT, AT(fargate_container), "", 0, 255,
     .help = "name of the container in it; default `paddock`"},
    {"fargate_subnets", CONFIG_TEXT, AT(fargate_subnets), "", 0, 512,
     .help = "subnets of tasks, with commas between: of several zones, so that there is room"},
    {"fargate_security_groups", CONFIG_TEXT, AT(fargate_security_groups), "", 0, 250,
     .help = "security groups of tasks, with commas between; they let this server in at "
             "fargate_port and nobody else"},
    {"fargate_public_ip", CONFIG_SWITCH, AT(fargate_public_ip), "off",
     .help = "whether tasks get a public address, where their subnets have no NAT"},
    {"fargate_spot", CONFIG_SWITCH, AT(fargate_spot), "off",
     .help = "whether tasks are FARGATE_SPOT, which AWS may take back"},
    {"fargate_port", CONFIG_COUNT, AT(fargate_port), "7400", 1, 65535,
     .help = "port that paddock-box listens at in a task"},
    {"fargate_target_group", CONFIG_TEXT, AT(fargate_target_group), "", 0, 512,
     .help = "ARN of a target group that tasks are registered in"},
    {"fargate_balancer", CONFIG_TEXT, AT(fargate_balancer), "", 0, 250,
     .help = "address of the load balancer that leads to it, `https://HOST`, where this server "
             "cannot reach tasks by their private addresses"},
    {"fargate_network", CONFIG_TEXT, AT(fargate_network), "", 0, 20,
     .help = "`isolated`: you say that fargate_security_groups let nothing out of a task; without "
             "it none is made, because a sandbox that was promised no network might have one"},
    {"cloudrun_project", CONFIG_TEXT, AT(cloudrun_project), "", 0, 63,
     .help = "project of provider `cloudrun`; default the variable SANDBOX_GCP_PROJECT"},
    {"cloudrun_region", CONFIG_TEXT, AT(cloudrun_region), "", 0, 39,
     .help = "its region; default SANDBOX_GCP_REGION, then `us-central1`"},
    {"cloudrun_job", CONFIG_TEXT, AT(cloudrun_job), "", 0, 63,
     .help = "job that sandboxes are executions of"},
    {"cloudrun_container", CONFIG_TEXT, AT(cloudrun_container), "", 0, 63,
     .help = "name of the container in it, where it has several"},
    {"cloudrun_listen", CONFIG_TEXT, AT(cloudrun_listen), "", 0, 80,
     .help = "`ADDRESS:PORT` that boxes of `cloudrun` call, as nobody can connect to them; it is "
             "listened at while there are some"},
    {"cloudrun_call", CONFIG_TEXT, AT(cloudrun_call), "", 0, 250,
     .help = "`HOST:PORT` that leads there from an execution; default cloudrun_listen"},
    {"cloudrun_bucket", CONFIG_TEXT, AT(cloudrun_bucket), "", 0, 222,
     .help = "bucket that the job mounts, through which links of boxes go where no network leads "
             "from them to this server, instead of cloudrun_listen; default SANDBOX_GCS_BUCKET"},
    {"cloudrun_storage_endpoint", CONFIG_TEXT, AT(cloudrun_storage_endpoint), "", 0, 250,
     .help = "address of Cloud Storage; default `https://storage.googleapis.com`"},
    {"cloudrun_network", CONFIG_TEXT, AT(cloudrun_network), "", 0, 20,
     .help = "`isolated`: you say that an execution's network reaches cloudrun_call and nothing "
             "else; without it none is made, because a sandbox that was promised no network might "
             "have one"},
    {"cloudrun_max_life_s", CONFIG_COUNT, AT(cloudrun_max_life_s), "86400", 60, 604800,
     .help = "seconds after which Google ends an execution whatever happens"},
    {"cloudrun_credentials_file", CONFIG_TEXT, AT(cloudrun_credentials_file), "", 0, 250,
     .help = "key file of a service account; read by the broker alone; default "
             "GOOGLE_APPLICATION_CREDENTIALS, then the machine's metadata server"},
    {"cloudrun_token_file", CONFIG_TEXT, AT(cloudrun_token_file), "", 0, 250,
     .help = "file with an access token instead, which somebody else keeps fresh"},
    {"cloudrun_endpoint", CONFIG_TEXT, AT(cloudrun_endpoint), "", 0, 250,
     .help = "address of the API; default `https://run.googleapis.com`"},
    {"cloudrun_ca_file", CONFIG_TEXT, AT(cloudrun_ca_file), "", 0, 250,
     .help = "authorities to trust there instead of the system's"},
    {"default_image", CONFIG_TEXT, AT(default_image), "", 0, SPEC_IMAGE_MAX,
     .aliases = {"STIGMER_SANDBOX_IMAGE"},
     .help = "image of sandboxes for which none was asked, where a provider needs one"},
    {"image_pull", CONFIG_CHOICE, AT(image_pull), "missing", .names = pulls,
     .aliases = {"STIGMER_SANDBOX_AUTO_PULL"},
     .help = "when images are fetched: `never`, `missing` or `always`"},
    {"image_store_max", CONFIG_SIZE, AT(image_store_max), "50G", 0, UINT64_MAX, .reloadable = 1,
     .help = "what images of provider jail may take, unpacked; more, and those go that nobody has "
             "used for longest; 0: any"},
    {"registries", CONFIG_LIST, AT(registries), "", 0, CONFIG_LIST_MAX,
     .help = "where registries are instead for provider jail, as `NAME=URL`: mirrors, plain http, "
             "private addresses; up to 32"},
    {"images_allowed", CONFIG_LIST, AT(images_allowed), "", 0, CONFIG_LIST_MAX, .reloadable = 1,
     .help = "images that sandboxes may be made from, as patterns of repositories: `debian`, "
             "`docker.io/library/*`, `registry.example:5000/team`; none: all"},
    {"tenant_images", CONFIG_LIST, AT(tenant_images), "", 0, CONFIG_LIST_MAX, .reloadable = 1,
     .help =
         "patterns of single tenants instead of images_allowed, as `TENANT=PATTERN`; `*` stands "
         "for every image"},
    {"max_sandboxes", CONFIG_COUNT, AT(max_sandboxes), "200", 1, 100000, .reloadable = 1,
     .help = "sandboxes in all; more wait in the queue"},
    {"max_sandboxes_per_tenant", CONFIG_COUNT, AT(max_sandboxes_per_tenant), "100", 1, 100000,
     .reloadable = 1, .help = "sandboxes of one tenant"},
    {"max_snapshots_per_tenant", CONFIG_COUNT, AT(max_snapshots_per_tenant), "100", 1, 100000,
     .reloadable = 1, .help = "snapshots of one tenant"},
    {"queue_max", CONFIG_COUNT, AT(queue_max), "100", 0, 100000, .reloadable = 1,
     .help = "creations that may wait; more are refused"},
    {"queue_timeout_s", CONFIG_SECONDS, AT(queue_timeout_ms), "30", 0, 3600000, .reloadable = 1,
     .help = "how long a creation waits"},
    {"pool_min", CONFIG_COUNT, AT(pool_min), "2", 0, 10000, .reloadable = 1,
     .help = "sandboxes kept ready, per template"},
    {"pool_max", CONFIG_COUNT, AT(pool_max), "8", 0, 10000, .reloadable = 1,
     .aliases = {"MAX_POOL_SIZE"},
     .help = "most that are kept ready when many are asked for; 0: no pool"},
    {"image_pool", CONFIG_COUNT, AT(image_pool), "0", 0, 16, .reloadable = 1,
     .help = "containers kept ready of each image and profile that was used; 0: none"},
    {"image_pool_max", CONFIG_COUNT, AT(image_pool_max), "8", 0, 1000, .reloadable = 1,
     .help = "containers kept ready of all images; they count for max_sandboxes, too"},
    {"image_pool_ttl_s", CONFIG_SECONDS, AT(image_pool_ttl_ms), "600", 100, 365 * DAY_MS,
     .reloadable = 1,
     .help = "containers of an image for which nobody has asked for this time are ended"},
    {"idle_timeout_s", CONFIG_SECONDS, AT(idle_timeout_ms), "1800", 100, 365 * DAY_MS,
     .reloadable = 1,
     .help = "a sandbox that nobody uses ends after this time, if not created with another one"},
    {"max_life_s", CONFIG_SECONDS, AT(ceilings.life_ms), "86400", 100, CEILING_LIFE_MAX,
     .reloadable = 1, .aliases = {"STIGMER_SANDBOX_TTL"},
     .help = "how long a sandbox lives if it asks for no other time, and the most that it may ask "
             "for, when it is made and when it is extended"},
    {"default_template", CONFIG_TEXT, AT(default_template), "default", 1, 63, .reloadable = 1,
     .help = "template of sandboxes for which none was asked"},
    {"templates", CONFIG_LIST, AT(templates), "code-interpreter-v1=base", .reloadable = 1,
     .help = "other names of templates, as `NAME=TEMPLATE`, for E2B clients; at most 32"},
    {"template_dir", CONFIG_PATH, AT(template_dir), "", .reloadable = 1,
     .help = "directory of the operator's own templates, files `NAME.template` that the server can "
             "read; a reload reads them anew"},
    {"memory_bytes", CONFIG_SIZE, AT(memory_bytes), "512M", SPEC_MEMORY_MIN, SPEC_MEMORY_MAX,
     .reloadable = 1, .help = "memory of a sandbox"},
    {"pids", CONFIG_COUNT, AT(pids), "256", SPEC_PIDS_MIN, SPEC_PIDS_MAX, .reloadable = 1,
     .help = "processes and threads of a sandbox"},
    {"cpu", CONFIG_CORES, AT(cpu_milli), "1", SPEC_CPU_MIN, SPEC_CPU_MAX, .reloadable = 1,
     .help = "processor cores of a sandbox"},
    {"disk_bytes", CONFIG_SIZE, AT(disk_bytes), "1G", SPEC_DISK_MIN, SPEC_DISK_MAX, .reloadable = 1,
     .help = "bytes that a sandbox may keep in files"},
    {"files", CONFIG_COUNT, AT(files), "100000", SPEC_FILES_MIN, SPEC_FILES_MAX, .reloadable = 1,
     .help = "files that a sandbox may have"},
    {"max_memory_bytes", CONFIG_SIZE, AT(ceilings.memory), "", SPEC_MEMORY_MIN, SPEC_MEMORY_MAX,
     .reloadable = 1,
     .help = "the most memory that a sandbox may ask for; default half of the machine's"},
    {"max_pids", CONFIG_COUNT, AT(ceilings.pids), "", SPEC_PIDS_MIN, SPEC_PIDS_MAX, .reloadable = 1,
     .help = "the most processes and threads that a sandbox may ask for; default an eighth of the "
             "machine's, at most 4096"},
    {"max_cpu", CONFIG_CORES, AT(ceilings.cpu_milli), "", SPEC_CPU_MIN, SPEC_CPU_MAX,
     .reloadable = 1,
     .help = "the most cores that a sandbox may ask for; default those of the machine"},
    {"max_disk_bytes", CONFIG_SIZE, AT(ceilings.disk), "", SPEC_DISK_MIN, SPEC_DISK_MAX,
     .reloadable = 1,
     .help = "the most bytes in files that a sandbox may ask for; default half of the file system "
             "of state_dir"},
    {"tenant_limits", CONFIG_LIST, AT(tenant_limits), "", 0, CONFIG_LIST_MAX, .reloadable = 1,
     .help = "ceilings of single tenants instead of the server's, as "
             "`TENANT:max_pids=100:max_cpu=2`, of max_memory_bytes, max_pids, max_cpu, "
             "max_disk_bytes and max_life_s; at most 256 tenants"},
    {"storage", CONFIG_CHOICE, AT(storage), "auto", .names = storages,
     .help = "where the files of sandboxes are while these live: disk (also auto), or memory "
             "(made faster, and counted as the sandbox's memory)"},

    {"egress", CONFIG_CHOICE, AT(egress), "off", .names = egress_modes,
     .help = "the most that a sandbox may have as a way to the network: `off`, `list` (what "
             "egress_allow names) or `open`; sandboxes have none unless they ask"},
    {"egress_allow", CONFIG_LIST, AT(egress_allow), "", 0, CONFIG_LIST_MAX, .reloadable = 1,
     .help = "with egress `list`: the names and networks that rules of sandboxes may reach, as "
             "`NAME[:PORTS]`, `*.NAME[:PORTS]` or `NETWORK[:PORTS]`"},
    {"egress_private", CONFIG_LIST, AT(egress_private), "", .reloadable = 1,
     .help = "networks that are dialled for sandboxes although they are private, such as that of "
             "an own package index; addresses of this machine one by one"},
    {"egress_hosts", CONFIG_LIST, AT(egress_hosts), "", 0, 249, .reloadable = 1,
     .help = "where names or addresses really are, as `NAME=ADDRESS[:PORT]` or "
             "`*.NAME=ADDRESS[:PORT]`; not checked further"},
    {"egress_resolvers", CONFIG_LIST, AT(egress_resolvers), "", .max = 3, .reloadable = 1,
     .help = "whom names are asked of, `ADDRESS[:PORT]`; default as `/etc/resolv.conf` says"},
    {"egress_ca", CONFIG_TEXT, AT(egress_ca), "", 0, 250,
     .help =
         "file of the authorities that hosts with secrets or headers are checked against, by its "
         "whole path; sandboxes with a way out trust them, too; default the system's"},
    {"tenant_egress", CONFIG_LIST, AT(tenant_egress), "", 0, CONFIG_LIST_MAX, .reloadable = 1,
     .help = "the most of single tenants instead of egress, as `TENANT=off`, `TENANT=list` or "
             "`TENANT=open`; with egress `off` nobody has a way out"},
    {"egress_connections", CONFIG_COUNT, AT(egress_connections), "256", 1, 65536, .reloadable = 1,
     .help = "connections to the network that a sandbox may have at once; more wait"},
    {"egress_tenant_connections", CONFIG_COUNT, AT(egress_tenant_connections), "4096", 1, 1000000,
     .reloadable = 1, .help = "the same of all sandboxes of a tenant"},
    {"egress_secret_connections", CONFIG_COUNT, AT(egress_secret_connections), "1024", 8, 8192,
     .reloadable = 1,
     .help = "connections to hosts with secrets at once, of all tenants; a tenant has at most as "
             "many as it leaves free"},
    {"egress_rate", CONFIG_SIZE, AT(egress_rate), "0", 0, UINT64_C(1) << 40, .reloadable = 1,
     .help = "bytes a second, each way, of a sandbox; 0: no limit"},
    {"egress_bytes", CONFIG_SIZE, AT(egress_bytes), "0", 0, UINT64_C(1) << 60, .reloadable = 1,
     .help = "bytes that a sandbox may send and receive in all, while a gate lives; 0: no limit"},

    {"exec_timeout_s", CONFIG_SECONDS, AT(exec_timeout_ms), "30", 0, DAY_MS, .reloadable = 1,
     .help = "time-out of a command that names none; 0: none"},
    {"prepared_shell", CONFIG_SWITCH, AT(prepared_shell), "on", .reloadable = 1,
     .help = "a sandbox that runs command lines has the shell of its next line started in advance, "
             "which takes about 250 KB of its memory and one of its processes for up to 30 s"},
    {"contexts_max", CONFIG_COUNT, AT(contexts_max), "16", 1, 64, .reloadable = 1,
     .help = "code contexts of a sandbox"},
    {"contexts_warm_pool", CONFIG_COUNT, AT(contexts_warm_pool), "0", 0, 64, .reloadable = 1,
     .help = "sandboxes kept ready for the template code-interpreter-v1 whose Python has the "
             "libraries of contexts_warm imported; about 65 MB each; 0: none"},
    {"contexts_warm", CONFIG_LIST, AT(contexts_warm), "numpy,pandas,matplotlib.pyplot", 0, 32,
     .help = "what is imported there: modules of Python; one that is missing is left out"},
    {"output_max_bytes", CONFIG_SIZE, AT(output_max_bytes), "1M", 1024, 64 * MIB, .reloadable = 1,
     .help = "bytes of each output stream in the answer to an exec"},
    {"spool_max_bytes", CONFIG_SIZE, AT(spool_max_bytes), "64M", 4096, 16384 * MIB, .reloadable = 1,
     .help = "bytes of each output stream that are kept on disk"},
    {"output_kept_bytes", CONFIG_SIZE, AT(output_kept_bytes), "256M", MIB, 1024 * 1024 * MIB,
     .reloadable = 1,
     .help = "bytes of output that are kept of all commands of a sandbox; beyond it the output of "
             "the commands that ended first is forgotten, then the oldest of those that run"},
    {"output_kept_bytes_per_tenant", CONFIG_SIZE, AT(output_kept_bytes_per_tenant), "2G", MIB,
     1024 * 1024 * MIB, .reloadable = 1, .help = "the same of all sandboxes of a tenant"},
    {"output_kept_bytes_in_all", CONFIG_SIZE, AT(output_kept_bytes_in_all), "16G", MIB,
     1024 * 1024 * MIB, .reloadable = 1,
     .help = "the same of all tenants; never more than half of the disk"},

    {"max_connections", CONFIG_COUNT, AT(max_connections), "20000", 1, 1000000,
     .help = "open connections"},
    {"max_active", CONFIG_COUNT, AT(max_active), "2048", 1, 100000,
     .help = "requests at the same time, each with a thread"},
    {"max_open_files", CONFIG_COUNT, AT(max_open_files), "0", 0, 1u << 30,
     .help =
         "descriptors that the server, and the keeper that it starts, may each have; 0: as many "
         "as the system lets them"},
    {"requests_per_s", CONFIG_COUNT, AT(requests_per_s), "10000", 0, 1000000, .reloadable = 1,
     .help = "requests of one tenant per second; 0: no limit"},
    {"creates_per_s", CONFIG_COUNT, AT(creates_per_s), "200", 0, 1000000, .reloadable = 1,
     .help = "creations of one tenant per second; 0: no limit"},
    {"burst", CONFIG_COUNT, AT(burst), "1000", 1, 1000000, .reloadable = 1,
     .help = "requests and creations that may come at once before the rates count"},

    {"log_level", CONFIG_CHOICE, AT(log_level), "info", .names = levels, .reloadable = 1,
     .help = "lines of a lower level are left out"},
    {"log_format", CONFIG_CHOICE, AT(log_format), "text", .names = formats, .reloadable = 1,
     .help = "log lines for people or for programs"},
    {"audit", CONFIG_SWITCH, AT(audit), "on", .reloadable = 1,
     .help = "write `audit.log` in state_dir: who ran what, where, with which result"},
    {"audit_max_bytes", CONFIG_SIZE, AT(audit_max_bytes), "64M", 4096, 16384 * MIB, .reloadable = 1,
     .help = "an audit log of this size is put aside and a new one begun"},
    {"audit_keep", CONFIG_COUNT, AT(audit_keep), "5", 1, 1000, .reloadable = 1,
     .help = "audit logs put aside that are kept"},
    {"drain_timeout_s", CONFIG_SECONDS, AT(drain_timeout_ms), "10", 0, 3600000, .reloadable = 1,
     .help = "how long requests in progress have when the server is asked to end"},
};
const unsigned config_key_count = sizeof config_keys / sizeof *config_keys;
_Static_assert(sizeof config_keys / sizeof *config_keys <= CONFIG_KEYS_MAX, "struct config");

const struct config_other config_others[] = {
    {"SANDBOX_URL", "tells clients where the server is: set PADDOCK_URL"},
    {"SANDBOX_HOST", "tells clients where the server is: set PADDOCK_URL"},
    {"SANDBOX_PORT", "tells clients where the server is: set PADDOCK_URL"},
    {"USE_CLOUDRUN_JOBS_SANDBOX", "is a flag of the router: GET /v1/router"},
    {"CLOUDRUN_JOBS_ROLLOUT_PERCENTAGE", "belongs to a flag of the router: GET /v1/router"},
    {"SANDBOX_GCP_PROJECT", "belongs to a flag of the router: GET /v1/router"},
    {"SANDBOX_GCS_BUCKET", "is for the cloudrun provider"},
    {"E2B_API_KEY", "is for the e2b provider"},
    {"E2B_TIMEOUT", "is for the e2b provider"},
    {"DAYTONA_API_KEY", "is for the daytona provider"},
    {"DAYTONA_SERVER_URL", "is for the daytona provider"},
    {"DAYTONA_TARGET", "is for the daytona provider"},
    {"STIGMER_SANDBOX_CLEANUP", "is not needed: sandboxes are always cleaned up"},
};
const unsigned config_other_count = sizeof config_others / sizeof *config_others;

/* ---- finding ---- */

const struct config_key *config_find(const char *name, size_t len, int dashes)
{
    for (unsigned i = 0; i < config_key_count; i++) {
        const char *key = config_keys[i].name;
        size_t n = 0;
        while (n < len && key[n] && name[n] == (dashes && key[n] == '_' ? '-' : key[n]))
            n++;
        if (n == len && !key[n])
            return &config_keys[i];
    }

    return NULL;
}

/* How many letters must be changed, added or left out to make one of the other. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[40];

    size_t la = strlen(a), lb = strlen(b);
    if (la >= 40 || lb >= 40)
        return 40;

    for (unsigned j = 0; j <= lb; j++)
        row[j] = j;
    for (unsigned i = 1; i <= la; i++) {
        unsigned diagonal = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= lb; j++) {
            char x = a[i - 1] == '-' ? '_' : a[i - 1];
            unsigned best = diagonal + (x != b[j - 1]);
            diagonal = row[j];
            best = best < row[j] + 1 ? best : row[j] + 1;
            row[j] = best < row[j - 1] + 1 ? best : row[j - 1] + 1;
        }
    }

    return row[lb];
}

const char *config_nearest(const char *name)
{
    const char *best = NULL;

    size_t len = strlen(name);
    unsigned least = len < 4 ? 2 : len < 6 ? 3 : 4;
    for (unsigned i = 0; i < config_key_count; i++) {
        const char *key = config_keys[i].name;
        unsigned d = distance(name, key);
        /* The start of a name is near, too: memory for memory_bytes. */
        if (len >= 3 && len < strlen(key) && !strncmp(name, key, len) && d > 1)
            d = 1;
        if (d < least) {
            least = d;
            best = key;
        }
    }

    return best;
}

/* ---- values ---- */

static char **text_of(const struct config *c, const struct config_key *k)
{
    return (char **)((uintptr_t)c + k->offset);
}

static uint64_t *number_of(const struct config *c, const struct config_key *k)
{
    return (uint64_t *)((uintptr_t)c + k->offset);
}

static struct config_list *list_of(const struct config *c, const struct config_key *k)
{
    return (struct config_list *)((uintptr_t)c + k->offset);
}

static int is_text(const struct config_key *k)
{
    return k->type == CONFIG_TEXT || k->type == CONFIG_PATH || k->type == CONFIG_NAME;
}

int config_is_derived(const struct config_key *k)
{
    return !*k->value && !is_text(k) && k->type != CONFIG_LIST;
}

const char *config_type_name(const struct config_key *k)
{
    static const char *const names[] = {
        [CONFIG_TEXT] = "text",    [CONFIG_PATH] = "path",        [CONFIG_LIST] = "list",
        [CONFIG_COUNT] = "number", [CONFIG_SIZE] = "size",        [CONFIG_SECONDS] = "seconds",
        [CONFIG_CORES] = "cores",  [CONFIG_SWITCH] = "on or off", [CONFIG_CHOICE] = "word",
        [CONFIG_NAME] = "word",
    };
    return names[k->type];
}

void config_clear(struct config *c, const struct config_key *k)
{
    if (k->type == CONFIG_LIST) {
        struct config_list *l = list_of(c, k);
        while (l->count > 0)
            free(l->items[--l->count]);
    } else if (is_text(k)) {
        free(*text_of(c, k));
        *text_of(c, k) = NULL;
    }
}

static int set_text(struct config *c, const struct config_key *k, const char *text,
                    struct pd_err *e)
{
    char *copy = strdup(text);
    if (!copy)
        return pd_fail(e, PD_CAPACITY, "no memory for the configuration");
    free(*text_of(c, k));
    *text_of(c, k) = copy;
    return 0;
}

/* The index of a name, or -1 with an error that lists them. */
static int find_name(const struct config_key *k, const char *what, const char *text,
                     struct pd_err *e)
{
    for (int i = 0; k->names[i]; i++)
        if (!strcmp(k->names[i], text))
            return i;
    auto_buf valid = BUF_INIT(256);
    config_show_valid(k, &valid);
    const char *list = buf_cstr(&valid);
    return pd_fail(e, PD_INVALID, "%s: '%.40s' is not one of: %s", what, text, list ? list : "");
}

static int set_switch(uint64_t *ret, const char *what, const char *text, struct pd_err *e)
{
    static const char *const words[] = {"off", "on", "false", "true", "no", "yes", "0", "1"};
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i], text)) {
            *ret = i & 1;
            return 0;
        }
    return pd_fail(e, PD_INVALID, "%s: '%.40s' is neither on nor off", what, text);
}

static int set_seconds(const struct config_key *k, uint64_t *ret, const char *what,
                       const char *text, struct pd_err *e)
{
    uint64_t ns = 0;

    if (strcmp(text, "0") != 0 && parse_duration(what, text, UINT64_MAX, &ns, e) < 0)
        return -1;

    uint64_t ms = ns / NS_PER_MS;
    if (ms < k->min || ms > k->max || ns % NS_PER_MS)
        return pd_fail(e, PD_INVALID, "%s: '%.40s' is out of range: %g to %g seconds are valid",
                       what, text, (double)k->min / 1000, (double)k->max / 1000);
    *ret = ms;
    return 0;
}

static int set_path(struct config *c, const struct config_key *k, const char *what,
                    const char *text, struct pd_err *e)
{
    if (!strcmp(text, "none") || !*text)
        return set_text(c, k, text, e);
    if (text[0] != '/')
        return pd_fail(e, PD_INVALID, "%s: '%.80s' is not an absolute path", what, text);
    return set_text(c, k, text, e);
}

int config_add(struct config *c, const struct config_key *k, const char *what, const char *text,
               struct pd_err *e)
{
    struct config_list *l = list_of(c, k);
    unsigned most = k->max ? (unsigned)k->max : LIST_USUAL;

    for (const char *p = text; *p;) {
        p += strspn(p, ", \t");
        size_t len = strcspn(p, ", \t");
        if (!len)
            break;
        if (l->count == most)
            return pd_fail(e, PD_INVALID, "%s: more than %u values", what, most);
        char *copy = strndup(p, len);
        if (!copy)
            return pd_fail(e, PD_CAPACITY, "no memory for the configuration");
        l->items[l->count++] = copy;
        p += len;
    }

    return 0;
}

static int set_list(struct config *c, const struct config_key *k, const char *what,
                    const char *text, struct pd_err *e)
{
    struct config *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        return pd_fail(e, PD_CAPACITY, "no memory for the configuration");

    int r = config_add(fresh, k, what, text, e);
    if (r < 0) {
        config_clear(fresh, k);
    } else {
        config_clear(c, k);
        *list_of(c, k) = *list_of(fresh, k);
    }

    free(fresh);
    return r;
}

int config_read_number(const struct config_key *k, const char *what, const char *text,
                       uint64_t *ret, struct pd_err *e)
{
    switch (k->type) {
    case CONFIG_COUNT:
        return parse_u64(what, text, k->min, k->max, ret, e);
    case CONFIG_SIZE:
        return parse_size(what, text, k->min, k->max, ret, e);
    case CONFIG_SECONDS:
        return set_seconds(k, ret, what, text, e);
    case CONFIG_CORES:
        return parse_milli(what, text, k->min, k->max, ret, e);
    default:
        return pd_fail(e, PD_INTERNAL, "%s: is no number", what);
    }
}

int config_set(struct config *c, const struct config_key *k, const char *what, const char *text,
               struct pd_err *e)
{
    size_t len = strlen(text);

    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            return pd_fail(e, PD_INVALID, "%s: has a control character", what);
    if (len > TEXT_MAX)
        return pd_fail(e, PD_INVALID, "%s: is longer than %d bytes", what, TEXT_MAX);

    int index;
    switch (k->type) {
    case CONFIG_TEXT:
        if (len < k->min || len > k->max)
            return pd_fail(e, PD_INVALID,
                           "%s: '%.40s' has %zu bytes: %" PRIu64 " to %" PRIu64 " are valid", what,
                           text, len, k->min, k->max);
        return set_text(c, k, text, e);
    case CONFIG_PATH:
        return set_path(c, k, what, text, e);
    case CONFIG_LIST:
        return set_list(c, k, what, text, e);
    case CONFIG_COUNT:
    case CONFIG_SIZE:
    case CONFIG_SECONDS:
    case CONFIG_CORES:
        return config_read_number(k, what, text, number_of(c, k), e);
    case CONFIG_SWITCH:
        return set_switch(number_of(c, k), what, text, e);
    case CONFIG_CHOICE:
    case CONFIG_NAME:
        if ((index = find_name(k, what, text, e)) < 0)
            return -1;
        if (k->type == CONFIG_NAME)
            return set_text(c, k, text, e);
        *number_of(c, k) = (uint64_t)index;
        return 0;
    }

    return pd_fail(e, PD_INTERNAL, "%s: no such type", what);
}

/* Thousandths without needless zeros. */
static void show_milli(uint64_t v, struct buf *out)
{
    (void)buf_printf(out, "%" PRIu64, v / 1000);
    unsigned rest = (unsigned)(v % 1000);
    if (!rest)
        return;

    int digits = rest % 10 ? 3 : rest % 100 ? 2 : 1;
    (void)buf_printf(out, ".%0*u", digits,
                     digits == 3   ? rest
                     : digits == 2 ? rest / 10
                                   : rest / 100);
}

static void show_number(const struct config_key *k, uint64_t v, struct buf *out)
{
    if (k->type == CONFIG_SECONDS || k->type == CONFIG_CORES)
        show_milli(v, out);
    else if (k->type == CONFIG_SWITCH)
        (void)buf_puts(out, v ? "on" : "off");
    else if (k->type == CONFIG_CHOICE)
        (void)buf_puts(out, k->names[v]);
    else
        (void)buf_printf(out, "%" PRIu64, v);
}

void config_show(const struct config *c, const struct config_key *k, struct buf *out)
{
    if (k->type == CONFIG_LIST) {
        const struct config_list *l = list_of(c, k);
        for (unsigned i = 0; i < l->count; i++) {
            (void)buf_puts(out, i ? "," : "");
            (void)buf_puts(out, l->items[i]);
        }
    } else if (is_text(k)) {
        (void)buf_puts(out, *text_of(c, k) ? *text_of(c, k) : "");
    } else {
        show_number(k, *number_of(c, k), out);
    }
}

int config_copy(struct config *to, const struct config *from, const struct config_key *k,
                struct pd_err *e)
{
    if (is_text(k))
        return set_text(to, k, *text_of(from, k), e);
    if (k->type != CONFIG_LIST) {
        *number_of(to, k) = *number_of(from, k);
        return 0;
    }

    config_clear(to, k);
    const struct config_list *l = list_of(from, k);
    for (unsigned i = 0; i < l->count; i++)
        if (config_add(to, k, k->name, l->items[i], e) < 0)
            return -1;

    return 0;
}

void config_show_valid(const struct config_key *k, struct buf *out)
{
    switch (k->type) {
    case CONFIG_CHOICE:
    case CONFIG_NAME:
        for (unsigned i = 0; k->names[i]; i++) {
            (void)buf_puts(out, i ? ", " : "");
            (void)buf_puts(out, k->names[i]);
        }
        break;
    case CONFIG_SWITCH:
        (void)buf_puts(out, "on, off");
        break;
    case CONFIG_COUNT:
    case CONFIG_SIZE:
    case CONFIG_SECONDS:
    case CONFIG_CORES:
        show_number(k, k->min, out);
        (void)buf_puts(out, " to ");
        show_number(k, k->max, out);
        break;
    default:
        (void)buf_puts(out, config_type_name(k));
    }
}
