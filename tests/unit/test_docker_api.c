/* What is said to an engine and what its answers mean, by vectors: names of images, the body that
 * makes a container, answers as docker 20.10 and podman 4.3 gave them, and broken ones. */
#include "unit.h"

#include "base/err.h"
#include "engine/docker_api.h"
#include "wire/image_ref.h"

#include <jansson.h>
#include <string.h>

#define DIGEST "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define ID     "4f1e0123456789abcdef0123456789abcdef0123456789abcdef0123456789ab"

static void test_names_of_images(void **state)
{
    (void)state;
    static const struct {
        const char *text, *registry, *repository, *tag, *digest, *full;
    } v[] = {
        {"busybox", "docker.io", "library/busybox", "latest", "",
         "docker.io/library/busybox:latest"},
        {"debian:12", "docker.io", "library/debian", "12", "", "docker.io/library/debian:12"},
        {"a/b", "docker.io", "a/b", "latest", "", "docker.io/a/b:latest"},
        {"localhost/a", "localhost", "a", "latest", "", "localhost/a:latest"},
        {"127.0.0.1:5000/x/y:1.0-rc_2", "127.0.0.1:5000", "x/y", "1.0-rc_2", "",
         "127.0.0.1:5000/x/y:1.0-rc_2"},
        {"[::1]:5000/x", "[::1]:5000", "x", "latest", "", "[::1]:5000/x:latest"},
        {"ghcr.io/a.b/c__d-e--f:V1", "ghcr.io", "a.b/c__d-e--f", "V1", "",
         "ghcr.io/a.b/c__d-e--f:V1"},
        {"x@" DIGEST, "docker.io", "library/x", "", DIGEST, "docker.io/library/x@" DIGEST},
        {"r.io/x:t@" DIGEST, "r.io", "x", "t", DIGEST, "r.io/x@" DIGEST},
    };

    for (size_t i = 0; i < COUNT(v); i++) {
        struct image_ref r;
        struct pd_err e;
        char text[IMAGE_TEXT_MAX];
        if (image_ref_parse(v[i].text, &r, &e) < 0)
            fail_msg("%s: %s", v[i].text, e.msg);
        assert_string_equal(r.registry, v[i].registry);
        assert_string_equal(r.repository, v[i].repository);
        assert_string_equal(r.tag, v[i].tag);
        assert_string_equal(r.digest, v[i].digest);
        image_ref_text(&r, text);
        assert_string_equal(text, v[i].full);
    }
}

static void test_bad_names_are_named(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "UPPER",
        "a//b",
        "/a",
        "a/",
        "a:",
        "a:-x",
        "a: b",
        "a..b",
        "a___b",
        "-a",
        "a-",
        "a@sha256:0",
        "a@md5:0",
        "r.io:x/a",
        "r.io:/a",
        ".io/a",
        "a:t:u",
        "a@" DIGEST "0",
        "r.io:123456/a",
        "[::1/a",
        "a/../b",
        "a?b",
        "a%2fb",
    };

    for (size_t i = 0; i < COUNT(bad); i++) {
        struct image_ref r;
        struct pd_err e;
        if (image_ref_parse(bad[i], &r, &e) == 0)
            fail_msg("'%s' was taken for an image", bad[i]);
        assert_int_equal(e.code, PD_INVALID);
        if (bad[i][0] && !strstr(e.msg, bad[i]))
            fail_msg("'%s' is not named in: %s", bad[i], e.msg);
    }

    char longest[700];
    struct image_ref r;
    struct pd_err e;
    memset(longest, 'a', sizeof longest);
    longest[256] = 0;
    assert_int_equal(image_ref_parse(longest, &r, &e), -1);
    longest[256] = 'a';
    longest[699] = 0;
    assert_int_equal(image_ref_parse(longest, &r, &e), -1);
}

static struct docker_plan a_plan(void)
{
    return (struct docker_plan){.image = "docker.io/library/x:1",
                                .door = "/state/doors/i/box",
                                .owner = "i1",
                                .box = "box",
                                .store = "s1",
                                .root = "",
                                .runtime = "",
                                .limits = LIMITS_DEFAULT};
}

static void test_a_container_is_locked_down(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(65536);
    struct docker_plan p = a_plan();
    docker_create_body(&out, &p);

    json_t *j = json_loadb((const char *)out.data, out.len, 0, NULL);
    assert_non_null(j);
    const char *user, *network, *drop, *security, *source, *target, *type, *owner, *box, *log,
        *health;
    const char *image, *entry, *arg, *filter;
    int read_only, cmds;
    json_int_t memory, swap, cpus, pids;
    json_t *caps, *cmd, *host;
    assert_int_equal(json_unpack(j, "{s:s, s:s, s:[s,s,s], s:o, s:{s:[s]}, s:{s:s, s:s}, s:o}",
                                 "Image", &image, "User", &user, "Entrypoint", &entry, &arg,
                                 &filter, "Cmd", &cmd, "Healthcheck", "Test", &health, "Labels",
                                 "paddock.owner", &owner, "paddock.box", &box, "HostConfig", &host),
                     0);
    assert_int_equal(
        json_unpack(host,
                    "{s:s, s:[s], s:o, s:[s], s:I, s:I, s:I, s:I, s:[{s:s,s:s,s:s,s:b}], s:{s:s}}",
                    "NetworkMode", &network, "CapDrop", &drop, "CapAdd", &caps, "SecurityOpt",
                    &security, "Memory", &memory, "MemorySwap", &swap, "NanoCpus", &cpus,
                    "PidsLimit", &pids, "Mounts", "Type", &type, "Source", &source, "Target",
                    &target, "ReadOnly", &read_only, "LogConfig", "Type", &log),
        0);
    cmds = (int)json_array_size(cmd);

    assert_string_equal(image, "docker.io/library/x:1");
    assert_string_equal(user, "0:0");
    assert_string_equal(entry, "/run/paddock/init");
    assert_string_equal(arg, "door");
    assert_string_equal(filter, "filter=/run/paddock/filter");
    assert_int_equal(cmds, 0);
    assert_string_equal(health, "NONE");
    assert_string_equal(network, "none");
    assert_string_equal(drop, "ALL");
    assert_string_equal(security, "no-new-privileges");
    assert_int_equal(memory, 512 << 20);
    assert_int_equal(swap, memory);
    assert_int_equal(cpus, 1000000000);
    assert_int_equal(pids, 256);
    assert_string_equal(source, "/state/doors/i/box");
    assert_string_equal(target, "/run/paddock");
    assert_true(read_only);
    assert_string_equal(owner, "i1");
    assert_string_equal(box, "box");

    /* Nothing that reaches the host: these are the only capabilities. */
    char *list = json_dumps(caps, JSON_COMPACT);
    assert_string_equal(list, "[\"CHOWN\",\"KILL\",\"SETGID\",\"SETPCAP\",\"SETUID\"]");
    free(list);
    assert_null(json_object_get(host, "Privileged"));
    assert_null(json_object_get(host, "Binds"));
    assert_null(json_object_get(host, "Devices"));
    assert_null(json_object_get(host, "Runtime"));

    /* A name for the loopback; ::1 where the kernel is known to have it. */
    char *hosts = json_dumps(json_object_get(host, "ExtraHosts"), JSON_COMPACT);
    assert_string_equal(hosts, "[\"sandbox:127.0.0.1\"]");
    free(hosts);
    assert_null(json_object_get(host, "Sysctls"));
    json_decref(j);

    p.ipv6 = true;
    buf_clear(&out);
    docker_create_body(&out, &p);
    assert_non_null(j = json_loadb((const char *)out.data, out.len, 0, NULL));
    assert_non_null(host = json_object_get(j, "HostConfig"));
    hosts = json_dumps(json_object_get(host, "ExtraHosts"), JSON_COMPACT);
    assert_string_equal(hosts, "[\"sandbox:127.0.0.1\",\"sandbox:::1\"]");
    free(hosts);
    char *set = json_dumps(json_object_get(host, "Sysctls"), JSON_COMPACT);
    assert_string_equal(set, "{\"net.ipv6.conf.all.disable_ipv6\":\"0\"}");
    free(set);
    json_decref(j);
}

static void test_a_runtime_and_a_root_are_passed_on(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(65536);
    struct docker_plan p = a_plan();
    p.runtime = "runsc";
    p.root = "sb-1";
    docker_create_body(&out, &p);
    assert_non_null(strstr(buf_cstr(&out), "\"Runtime\":\"runsc\""));
    assert_non_null(strstr(buf_cstr(&out), "\"paddock.root\":\"sb-1\""));
}

/* In `dev` three capabilities more, for commands that are root, and sudo. Nothing else. */
static void test_a_container_of_the_profile_dev(void **state)
{
    (void)state;
    auto_buf strict = BUF_INIT(65536), dev = BUF_INIT(65536);
    struct docker_plan p = a_plan();
    docker_create_body(&strict, &p);
    p.dev = true;
    docker_create_body(&dev, &p);

    static const char *const more[] = {
        ",\"profile=dev\"", ",\"DAC_OVERRIDE\",\"FOWNER\",\"FSETID\"",
        (",{\"Type\":\"bind\",\"Source\":\"/state/doors/i/box/init\","
         "\"Target\":\"/opt/paddock/bin/sudo\",\"ReadOnly\":true}")};
    char text[4096];
    snprintf(text, sizeof text, "%s", buf_cstr(&dev));
    for (unsigned i = 0; i < sizeof more / sizeof *more; i++) {
        char *at = strstr(text, more[i]);
        assert_non_null(at);
        memmove(at, at + strlen(more[i]), strlen(at + strlen(more[i])) + 1);
    }
    assert_string_equal(text, buf_cstr(&strict));
}

static void test_what_cannot_be_given_is_refused(void **state)
{
    (void)state;
    struct pd_err e;
    struct spec s = SPEC_DEFAULT;

    assert_int_equal(docker_check_spec("docker", &s, &e), -1);
    assert_non_null(strstr(e.msg, "image"));
    s.image = "x";
    assert_int_equal(docker_check_spec("docker", &s, &e), 0);

    s.min_rung = RUNG_FULL;
    assert_int_equal(docker_check_spec("docker", &s, &e), -1);
    assert_int_equal(e.code, PD_ISOLATION);
    s.min_rung = RUNG_BASIC;
    s.profile = PROFILE_DEV;
    assert_int_equal(docker_check_spec("docker", &s, &e), 0);
    s.profile = PROFILE_RESTRICTED;
    assert_int_equal(docker_check_spec("docker", &s, &e), -1);
    assert_non_null(strstr(e.msg, "'restricted'"));
    s.profile = PROFILE_STRICT;
    s.network = NETWORK_HOST;
    assert_int_equal(docker_check_spec("podman", &s, &e), -1);
    assert_non_null(strstr(e.msg, "podman"));
    assert_non_null(strstr(e.msg, "'host'"));
    s.network = NETWORK_NONE;
    s.binds[s.bind_count++] = (struct spec_bind){.source = "/etc", .target = "/x"};
    assert_int_equal(docker_check_spec("docker", &s, &e), -1);
    assert_non_null(strstr(e.msg, "/etc"));
}

static int read_one(const char *json, struct docker_container *c, struct pd_err *e)
{
    return docker_read_container(json, strlen(json), c, e);
}

static void test_ids_of_images(void **state)
{
    (void)state;
    struct pd_err e;
    char id[16];
    static const char good[] = "{\"Id\":\"sha256:12\"}";
    assert_int_equal(docker_read_image_id(good, strlen(good), id, sizeof id, &e), 0);
    assert_string_equal(id, "sha256:12");

    static const char *const bad[] = {"{}", "{\"Id\":7}", "{\"Id\":\"\"}", "[]", "", "{"};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(docker_read_image_id(bad[i], strlen(bad[i]), id, sizeof id, &e), -1);
        assert_int_equal(e.code, PD_PROTOCOL);
    }
}

static void test_volumes_and_layers(void **state)
{
    (void)state;
    struct pd_err e;
    struct docker_container c;
    static const char head[] =
        "{\"Id\":\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789"
        "abcdef\",\"Image\":\"sha256:12\",\"Config\":{\"Image\":\"a/b:1\"},\"Mounts\":";
    char text[600];
    snprintf(text, sizeof text, "%s%s}", head,
             "[{\"Type\":\"bind\",\"Destination\":\"/run/paddock\"},"
             "{\"Type\":\"volume\",\"Destination\":\"/data\"}]");
    assert_int_equal(read_one(text, &c, &e), 0);
    assert_string_equal(c.volume, "/data");
    assert_string_equal(c.image, "sha256:12");
    assert_string_equal(c.from, "a/b:1");
    for (unsigned i = 0; i < 3; i++) {
        static const char *const none[] = {"null", "{}", "[{\"Type\":\"bind\"},7]"};
        snprintf(text, sizeof text, "%s%s}", head, none[i]);
        assert_int_equal(read_one(text, &c, &e), 0);
        assert_string_equal(c.volume, "");
    }

    static const struct {
        const char *json;
        int layers;
    } images[] = {{"{\"RootFS\":{\"Layers\":[\"a\",\"b\"]}}", 2},
                  {"{\"RootFS\":{\"Layers\":[]}}", 0},
                  {"{\"RootFS\":{\"Layers\":null}}", -1},
                  {"{\"RootFS\":7}", -1},
                  {"[]", -1},
                  {"", -1}};
    for (unsigned i = 0; i < sizeof images / sizeof *images; i++)
        assert_int_equal(docker_read_layers(images[i].json, strlen(images[i].json), &e),
                         images[i].layers);
}

static void test_a_container_is_read(void **state)
{
    (void)state;
    struct pd_err e;
    struct docker_container c;
    char why[200];

    assert_int_equal(
        read_one("{\"Id\":\"" ID "\",\"State\":{\"Status\":\"running\",\"Running\":true,"
                 "\"Paused\":false,\"OOMKilled\":false,\"Pid\":4711,\"ExitCode\":0,\"Error\":\"\"},"
                 "\"Config\":{\"Labels\":{\"paddock.owner\":\"i\",\"paddock.box\":\"b\"}}}",
                 &c, &e),
        0);
    assert_string_equal(c.id, ID);
    assert_int_equal(c.pid, 4711);
    assert_true(c.running && !c.paused);
    assert_string_equal(c.owner, "i");
    assert_string_equal(c.box, "b");
    assert_string_equal(c.root, "");

    static const struct {
        const char *state, *says;
    } ends[] = {
        {"\"OOMKilled\":true,\"ExitCode\":137", "out of memory"},
        {"\"OOMKilled\":false,\"ExitCode\":137", "killed from outside"},
        {"\"ExitCode\":3", "exit code 3"},
        {"\"ExitCode\":127,\"Error\":\"no init\"", "no init"},
    };
    for (size_t i = 0; i < COUNT(ends); i++) {
        char json[400];
        snprintf(json, sizeof json, "{\"Id\":\"" ID "\",\"State\":{\"Pid\":5,%s}}", ends[i].state);
        assert_int_equal(read_one(json, &c, &e), 0);
        assert_int_equal(c.pid, 0);
        docker_say_end(&c, why, sizeof why);
        if (!strstr(why, ends[i].says))
            fail_msg("%s: %s", ends[i].state, why);
    }

    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"Id\":7}",
        "{\"Id\":\"../../etc\"}",
        "{\"Id\":\"abc\"}",
        "{\"Id\":\"" ID "0\"}",
        "{\"Id\":\"" ID "\"",
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(read_one(bad[i], &c, &e), -1);
        assert_int_equal(e.code, PD_PROTOCOL);
    }

    /* Strange values are none. */
    assert_int_equal(read_one("{\"Id\":\"" ID "\",\"State\":{\"Running\":1,\"Pid\":-4,\"ExitCode\":"
                              "99999999999},\"Config\":{\"Labels\":[]}}",
                              &c, &e),
                     0);
    assert_int_equal(c.pid, 0);
    assert_int_equal(c.exit_code, 0);
}

static void test_a_log_is_read(void **state)
{
    (void)state;
    static const char log[] = "\2\0\0\0\0\0\0\4abc\n\1\0\0\0\0\0\0\3d\x1b"
                              "e"
                              "\2\0\0\0\xff\xff\xff\xff"
                              "cut";
    char out[64];
    docker_read_log(log, sizeof log - 1, out, sizeof out);
    assert_string_equal(out, "abc d ecut");

    docker_read_log(log, sizeof log - 1, out, 4);
    assert_string_equal(out, "abc");
    docker_read_log("", 0, out, sizeof out);
    assert_string_equal(out, "");
}

static int count_one(void *context, const struct docker_container *c, struct pd_err *e)
{
    unsigned *n = context;
    (void)e;
    *n += 1 + 10 * c->running + 100 * (c->root[0] != 0);
    return 0;
}

static void test_a_list_is_read(void **state)
{
    (void)state;
    struct pd_err e;
    unsigned n = 0;
    const char *list =
        "[{\"Id\":\"" ID "\",\"State\":\"running\",\"Labels\":{}},"
        "{\"Id\":\"" ID "\",\"State\":\"exited\",\"Labels\":{\"paddock.root\":\"r\"}}]";
    assert_int_equal(docker_read_list(list, strlen(list), count_one, &n, &e), 0);
    assert_int_equal(n, 112);
    assert_int_equal(docker_read_list("{}", 2, count_one, &n, &e), -1);
    assert_int_equal(docker_read_list("[{}]", 4, count_one, &n, &e), -1);
}

static void test_versions_are_negotiated(void **state)
{
    (void)state;
    struct pd_err e;
    char v[16];
    static const struct {
        const char *json, *want;
    } good[] = {
        {"{\"ApiVersion\":\"1.41\",\"MinAPIVersion\":\"1.12\"}", "1.40"},
        {"{\"ApiVersion\":\"1.52\",\"MinAPIVersion\":\"1.44\"}", "1.44"},
        {"{\"ApiVersion\":\"1.41\"}", "1.40"},
    };
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_int_equal(docker_read_version(good[i].json, strlen(good[i].json), v, &e), 0);
        assert_string_equal(v, good[i].want);
    }

    const char *old = "{\"ApiVersion\":\"1.24\",\"Version\":\"1.12.6\"}";
    assert_int_equal(docker_read_version(old, strlen(old), v, &e), -1);
    assert_int_equal(e.code, PD_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "1.12.6"));
    const char *odd = "{\"ApiVersion\":\"2.0\"}";
    assert_int_equal(docker_read_version(odd, strlen(odd), v, &e), -1);
    assert_int_equal(e.code, PD_PROTOCOL);
}

static void test_info_is_read(void **state)
{
    (void)state;
    struct pd_err e;
    struct docker_info i;
    const char *json =
        "{\"ServerVersion\":\"20.10.24\",\"Driver\":\"overlay2\",\"CgroupDriver\":\"cgroupfs\","
        "\"CgroupVersion\":\"1\",\"MemoryLimit\":true,\"PidsLimit\":true,\"CpuCfsQuota\":false,"
        "\"SecurityOptions\":[\"name=seccomp,profile=default\",\"name=userns\"],"
        "\"Runtimes\":{\"runc\":{}}}";

    assert_int_equal(docker_read_info(json, strlen(json), "", &i, &e), 0);
    assert_true(i.seccomp && i.userns && !i.rootless && i.memory_limit && !i.cpu_limit);
    assert_int_equal(i.cgroup_version, 1);
    assert_true(i.has_runtime);
    assert_int_equal(docker_read_info(json, strlen(json), "runsc", &i, &e), 0);
    assert_false(i.has_runtime);
    assert_int_equal(docker_read_info("[]", 2, "", &i, &e), -1);
}

/* What podman says of a limit in docker's words is true only with a controller for it. */
static void test_limits_that_an_engine_does_not_hold(void **state)
{
    (void)state;
    const struct docker_info all = {.memory_limit = true, .pids_limit = true, .cpu_limit = true};
    static const struct {
        const char *json, *says; /* NULL: all are held */
    } v[] = {
        {"{\"host\":{\"cgroupControllers\":[\"cpuset\",\"cpu\",\"memory\",\"pids\"]}}", NULL},
        {"{\"host\":{\"cgroupControllers\":[]}}", " memory processes processor"},
        {"{\"host\":{\"cgroupControllers\":[\"memory\",\"pids\"]}}", "of processor:"},
        {"{\"host\":{\"cgroupControllers\":[\"cpu\",\"memor\",7]}}", " memory processes:"},
    };
    static const char *const bad[] = {"", "[]", "{}",
                                      "{\"host\":{\"cgroupControllers\":\"memory\"}}"};

    for (size_t i = 0; i < COUNT(v); i++) {
        struct docker_info info = all;
        struct pd_err e;
        assert_int_equal(docker_read_controllers(v[i].json, strlen(v[i].json), &info, &e), 0);
        int r = docker_check_limits("podman", &info, &e);
        if (r != (v[i].says ? -1 : 0) ||
            (r < 0 && (e.code != PD_UNSUPPORTED || !strstr(e.msg, v[i].says))))
            fail_msg("%s: %d %s", v[i].json, r, r < 0 ? e.msg : "");
    }

    for (size_t i = 0; i < COUNT(bad); i++) {
        struct docker_info info = all;
        struct pd_err e;
        assert_int_equal(docker_read_controllers(bad[i], strlen(bad[i]), &info, &e), -1);
        assert_int_equal(e.code, PD_PROTOCOL);
    }

    /* A controller brings back nothing that the engine has not. */
    struct docker_info none = {.rootless = true};
    struct pd_err e;
    assert_int_equal(docker_read_controllers(v[0].json, strlen(v[0].json), &none, &e), 0);
    assert_int_equal(docker_check_limits("docker", &none, &e), -1);
    assert_non_null(strstr(e.msg, "Delegate="));
}

static void test_lines_of_a_pull(void **state)
{
    (void)state;
    struct pd_err e;
    static const char lines[] =
        "{\"status\":\"Pulling from library/x\",\"id\":\"1\"}\r\n"
        "{\"status\":\"Pulling fs layer\",\"progressDetail\":{},\"id\":\"a\"}\r\n"
        "{\"status\":\"Downloading\",\"progressDetail\":{\"current\":5,\"total\":9},\"id\":\"a\"}"
        "\r\n"
        "{\"status\":\"Pull complete\",\"id\":\"a\"}\r\n"
        "{\"status\":\"Digest: " DIGEST "\"}\r\n\r\n";

    /* Cut at every place. */
    for (size_t cut = 0; cut <= sizeof lines - 1; cut++) {
        struct docker_pull p = DOCKER_PULL_INIT;
        assert_int_equal(docker_pull_take(&p, lines, cut, &e), 0);
        assert_int_equal(docker_pull_take(&p, lines + cut, sizeof lines - 1 - cut, &e), 0);
        struct msg_progress m = docker_pull_progress(&p);
        assert_int_equal(m.layers, 1);
        assert_int_equal(m.layers_done, 1);
        assert_int_equal(m.bytes_done, 9);
        assert_int_equal(m.bytes, 9);
        assert_string_equal(p.digest, DIGEST);
        assert_false(p.failed);
        docker_pull_done(&p);
    }

    struct docker_pull p = DOCKER_PULL_INIT;
    const char *failed =
        "{\"errorDetail\":{\"message\":\"first\"},\"error\":\"x\"}\n{\"error\":\"second\"}\n";
    assert_int_equal(docker_pull_take(&p, failed, strlen(failed), &e), 0);
    assert_true(p.failed);
    assert_string_equal(p.error, "first");
    assert_int_equal(docker_pull_take(&p, "not json\n", 9, &e), -1);
    assert_int_equal(e.code, PD_PROTOCOL);

    static char endless[70000];
    memset(endless, ' ', sizeof endless);
    assert_int_equal(docker_pull_take(&p, endless, sizeof endless, &e), -1);
    docker_pull_done(&p);
}

/* As long as those of an engine's layers. */
#define LONG_PATH                                                                                  \
    "/engine/overlay2/410080d3c35666209491ee048d2a6ac75357a315fab2e563a30307d28d65099b/diff/"      \
    "overlay2/410080d3c35666209491ee048d2a6ac75357a315fab2e563a30307d28d65099b/merged/etc/file"

/* What one more line makes of the sum. */
static void test_how_far_a_pull_is(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        struct msg_progress now;
    } v[] = {
        {"{\"status\":\"Pulling from a\",\"id\":\"latest\"}", {0}},
        {"{\"status\":\"Pulling fs layer\",\"id\":\"a\"}", {.layers = 1}},
        {"{\"status\":\"Pulling fs layer\",\"id\":\"a\"}", {.layers = 1}},
        {"{\"status\":\"Pulling fs layer\",\"id\":\"b\"}", {.layers = 2}},
        {"{\"status\":\"Already exists\",\"id\":\"c\"}", {1, 3, 0, 0}},
        {"{\"status\":\"Downloading\",\"id\":\"a\",\"progressDetail\":{\"current\":4,\"total\":10}"
         "}",
         {1, 3, 4, 10}},
        {"{\"status\":\"Downloading\",\"id\":\"b\",\"progressDetail\":{\"current\":9,\"total\":5}}",
         {1, 3, 9, 15}},
        {"{\"status\":\"Downloading\",\"id\":\"x\",\"progressDetail\":{\"current\":1,\"total\":5}}",
         {1, 3, 9, 15}},
        {"{\"status\":\"Downloading\",\"id\":\"b\",\"progressDetail\":{\"current\":-1,\"total\":-5}"
         "}",
         {1, 3, 9, 15}},
        {"{\"status\":\"Downloading\",\"id\":\"b\",\"progressDetail\":{\"current\":1,"
         "\"total\":9223372036854775807}}",
         {1, 3, 9, 15}},
        {"{\"status\":\"Downloading\",\"id\":\"b\",\"progressDetail\":\"5\"}", {1, 3, 9, 15}},
        {"{\"status\":\"Download complete\",\"id\":\"a\"}", {1, 3, 15, 15}},
        {"{\"status\":\"Extracting\",\"id\":\"a\",\"progressDetail\":{\"current\":1,\"total\":10}}",
         {1, 3, 15, 15}},
        {"{\"status\":\"Pull complete\",\"id\":\"a\"}", {2, 3, 15, 15}},
        {"{\"status\":\"Pull complete\",\"id\":\"4f1e01234567\"}", {2, 3, 15, 15}},
        {"{\"status\":\"Pulling fs layer\",\"id\":7}", {2, 3, 15, 15}},
        {"{\"status\":\"Pulling fs layer\",\"id\":\"\"}", {2, 3, 15, 15}},
        {"{\"status\":\"Pulling fs layer\",\"id\":\"0123456789abcdef\"}", {2, 3, 15, 15}},
    };

    struct docker_pull p = DOCKER_PULL_INIT;
    struct pd_err e;
    for (size_t i = 0; i < COUNT(v); i++) {
        assert_int_equal(docker_pull_take(&p, v[i].line, strlen(v[i].line), &e), 0);
        assert_int_equal(docker_pull_take(&p, "\n", 1, &e), 0);
        struct msg_progress now = docker_pull_progress(&p);
        if (memcmp(&now, &v[i].now, sizeof now) != 0)
            fail_msg("%s: %u/%u layers, %llu/%llu bytes", v[i].line, now.layers_done, now.layers,
                     (unsigned long long)now.bytes_done, (unsigned long long)now.bytes);
    }

    for (unsigned i = 0; i < 2 * DOCKER_LAYERS_MAX; i++) {
        char line[80];
        snprintf(line, sizeof line, "{\"status\":\"Pulling fs layer\",\"id\":\"l%u\"}\n", i);
        assert_int_equal(docker_pull_take(&p, line, strlen(line), &e), 0);
    }
    assert_int_equal(docker_pull_progress(&p).layers, DOCKER_LAYERS_MAX);
    docker_pull_done(&p);
}

static void test_refusals_have_a_remedy(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *body;
        enum pd_code code;
        const char *says;
    } v[] = {
        {404, "{\"message\":\"No such image: x:1\"}", PD_NOT_FOUND, "No such image: x:1"},
        {404, "{\"message\":\"manifest for x:1 not found: manifest unknown\"}", PD_NOT_FOUND,
         "check its name"},
        {404, "{\"message\":\"pull access denied for x, repository does not exist\"}", PD_DENIED,
         "registry_auth"},
        {500, "{\"message\":\"Get http://r/v2/: dial tcp: connect: connection refused\"}",
         PD_BAD_GATEWAY, "is the registry up"},
        {500, "{\"message\":\"write /var/x: no space left on device\"}", PD_NO_SPACE, "prune"},
        {500, "{\"message\":\"write " LONG_PATH ": no space left on device\"}", PD_NO_SPACE,
         "no space left on device; free some"},
        {500, "{\"message\":\"write " LONG_PATH ": no space left on device\"}", PD_NO_SPACE,
         "create: write /engine/"},
        {400, "{\"message\":\"unknown or invalid runtime name: runsc\"}", PD_INVALID,
         "docker_runtime"},
        {403, "{\"message\":\"denied: requested access to the resource is denied\"}", PD_DENIED,
         "registry_auth"},
        {500, "{\"message\":\"denied: Permission denied for 1 from request /v2/x\"}", PD_DENIED,
         "registry_auth"},
        {500, "{\"message\":\"statfs /state/doors/1: permission denied\"}", PD_BAD_GATEWAY,
         "the server as that user"},
        {409, "{\"message\":\"Conflict. The container name is in use\"}", PD_CONFLICT, "in use"},
        {500, "{\"cause\":\"x\",\"message\":\"podman\\nsays\",\"response\":500}", PD_BAD_GATEWAY,
         "podman says"},
        {502, "<html>", PD_BAD_GATEWAY, "502: <html>"},
        {500, "", PD_BAD_GATEWAY, "answers 500"},
    };

    for (size_t i = 0; i < COUNT(v); i++) {
        struct pd_err e;
        assert_int_equal(docker_fail(v[i].status, v[i].body, strlen(v[i].body), "create", &e), -1);
        if (e.code != v[i].code || !strstr(e.msg, v[i].says))
            fail_msg("%s: %s, %s", v[i].body, pd_code_name(e.code), e.msg);
    }
}

static void test_credentials_are_for_their_registry(void **state)
{
    (void)state;
    struct pd_err e;
    auto_buf out = BUF_INIT(10000);
    const char *file = "{\"auths\":{\"r.io\":{\"auth\":\"dTpwOnE=\"},"
                       "\"https://index.docker.io/v1/\":{\"identitytoken\":\"tok\"},"
                       "\"bad.io\":{\"auth\":\"***\"}}}";

    assert_int_equal(docker_read_auth(file, strlen(file), "other.io", &out, &e), 0);
    assert_int_equal(out.len, 0);

    /* {"username":"u","password":"p:q","serveraddress":"r.io"} */
    assert_int_equal(docker_read_auth(file, strlen(file), "r.io", &out, &e), 0);
    assert_string_equal(buf_cstr(&out),
                        "eyJ1c2VybmFtZSI6InUiLCJwYXNzd29yZCI6InA6cSIsInNlcnZlcmFkZHJl"
                        "c3MiOiJyLmlvIn0=");

    buf_clear(&out);
    assert_int_equal(docker_read_auth(file, strlen(file), "docker.io", &out, &e), 0);
    assert_true(out.len > 0);
    assert_int_equal(docker_read_auth(file, strlen(file), "bad.io", &out, &e), -1);
    assert_non_null(strstr(e.msg, "bad.io"));
    assert_null(strstr(e.msg, "***"));
    assert_int_equal(docker_read_auth("{}", 2, "r.io", &out, &e), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_of_images),
        cmocka_unit_test(test_bad_names_are_named),
        cmocka_unit_test(test_a_container_is_locked_down),
        cmocka_unit_test(test_a_runtime_and_a_root_are_passed_on),
        cmocka_unit_test(test_a_container_of_the_profile_dev),
        cmocka_unit_test(test_what_cannot_be_given_is_refused),
        cmocka_unit_test(test_ids_of_images),
        cmocka_unit_test(test_volumes_and_layers),
        cmocka_unit_test(test_a_container_is_read),
        cmocka_unit_test(test_a_log_is_read),
        cmocka_unit_test(test_a_list_is_read),
        cmocka_unit_test(test_versions_are_negotiated),
        cmocka_unit_test(test_info_is_read),
        cmocka_unit_test(test_limits_that_an_engine_does_not_hold),
        cmocka_unit_test(test_lines_of_a_pull),
        cmocka_unit_test(test_how_far_a_pull_is),
        cmocka_unit_test(test_refusals_have_a_remedy),
        cmocka_unit_test(test_credentials_are_for_their_registry),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
