/* The reader of images, by vectors: indexes, manifests, configurations and lists of docker's. */
#include "unit.h"

#include "base/err.h"
#include "image/manifest.h"

#include <string.h>

#define HEX                 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define OCI                 "application/vnd.oci.image."
#define ENTRY               "\"digest\":\"sha256:" HEX "\",\"size\":7"
#define MANIFEST_OF(layers) "{\"schemaVersion\":2,\"config\":{" ENTRY "},\"layers\":[" layers "]}"

static void test_an_index_is_read_and_the_platform_chosen(void **state)
{
    (void)state;
    static const char text[] =
        "{\"schemaVersion\":2,\"manifests\":["
        "{\"mediaType\":\"" OCI "manifest.v1+json\"," ENTRY
        ",\"platform\":{\"os\":\"linux\",\"architecture\":\"arm64\"}},"
        "{\"mediaType\":\"something/else\"},"
        "{\"mediaType\":\"application/vnd.docker.distribution.manifest.list.v2+json\"," ENTRY
        ",\"platform\":{\"os\":\"linux\",\"architecture\":\"amd64\"},"
        "\"annotations\":{\"org.opencontainers.image.ref.name\":\"a:1\"}}]}";
    struct index x;
    struct pd_err e;

    if (index_read(text, strlen(text), &x, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(x.count, 2);
    assert_ptr_equal(index_choose(&x, "aarch64", &e), &x.entries[0]);
    assert_ptr_equal(index_choose(&x, "x86_64", &e), &x.entries[1]);
    assert_int_equal(x.entries[1].kind, DESCRIPTOR_INDEX);
    assert_string_equal(x.entries[1].name, "a:1");
    assert_null(index_choose(&x, "riscv64", &e));
    assert_non_null(strstr(e.msg, "linux/arm64 linux/amd64"));
}

static void test_a_manifest_is_read(void **state)
{
    (void)state;
    static const char text[] =
        MANIFEST_OF("{\"mediaType\":\"" OCI "layer.v1.tar\"," ENTRY "},{\"mediaType\":\"" OCI
                    "layer.v1.tar+zstd\"," ENTRY "}");
    struct manifest m;
    struct pd_err e;

    if (manifest_read(text, strlen(text), &m, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(m.layer_count, 2);
    assert_int_equal(m.layers[0].packing, IMAGE_PLAIN);
    assert_int_equal(m.layers[1].packing, IMAGE_ZSTD);
    assert_int_equal(m.layers[1].size, 7);
    assert_string_equal(m.config, HEX);
}

static void test_texts_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } v[] = {
        {"", "no JSON"},
        {"[]", "no kind that is known"},
        {"{\"schemaVersion\":1}", "no kind that is known"},
        {"{\"schemaVersion\":2,\"schemaVersion\":2}", "no JSON"},
        {MANIFEST_OF("{" ENTRY "}"), "is not understood"},
        {MANIFEST_OF("{\"mediaType\":\"" OCI "layer.nondistributable.v1.tar\"," ENTRY "}"),
         "is not understood"},
        {MANIFEST_OF("{\"mediaType\":\"" OCI "layer.v1.tar\",\"digest\":\"sha512:" HEX
                     "\",\"size\":1}"),
         "sha512"},
        {MANIFEST_OF("{\"mediaType\":\"" OCI
                     "layer.v1.tar\",\"digest\":\"sha256:../../x\",\"size\":1}"),
         "no digest"},
        {MANIFEST_OF("{\"mediaType\":\"" OCI "layer.v1.tar\",\"digest\":\"sha256:" HEX
                     "\",\"size\":-1}"),
         "no number"},
    };

    for (size_t i = 0; i < COUNT(v); i++) {
        struct manifest m;
        struct pd_err e = {0};
        assert_int_equal(manifest_read(v[i].text, strlen(v[i].text), &m, &e), -1);
        if (!strstr(e.msg, v[i].why))
            fail_msg("%s: '%s'", v[i].text, e.msg);
    }
}

static void test_a_configuration_is_read(void **state)
{
    (void)state;
    static const char text[] =
        "{\"os\":\"linux\",\"architecture\":\"amd64\",\"created\":\"now\",\"config\":{\"Env\":"
        "[\"A=1\"],\"Cmd\":[\"x\",\"y\"],\"Entrypoint\":null,\"User\":\"7:8\",\"WorkingDir\":"
        "\"/w\"},\"rootfs\":{\"diff_ids\":[\"sha256:" HEX "\"]}}";
    static const char foreign[] = "{\"os\":\"plan9\",\"rootfs\":{\"diff_ids\":[]}}";
    struct image_record r = {0};
    struct json_t *hold = NULL;
    struct pd_err e;

    if (config_read(text, strlen(text), &r, &hold, &e) < 0)
        fail_msg("%s", e.msg);
    assert_string_equal(r.env[0], "A=1");
    assert_int_equal(r.cmd_count, 2);
    assert_int_equal(r.entrypoint_count, 0);
    assert_string_equal(r.user, "7:8");
    assert_string_equal(r.layers[0].diff, HEX);
    manifest_release(hold);

    assert_int_equal(config_read(foreign, strlen(foreign), &r, &hold, &e), -1);
    assert_non_null(strstr(e.msg, "plan9"));
}

static void test_a_list_of_docker_s_is_read(void **state)
{
    (void)state;
    static const char text[] = "[{\"Config\":\"a.json\",\"RepoTags\":[\"x:1\",\"y:2\"],\"Layers\":"
                               "[\"1/layer.tar\"]},{\"Config\":\"b.json\",\"Layers\":[]}]";
    static struct saved_image s;
    uint32_t count = 0;
    struct pd_err e;

    assert_int_equal(saved_read(text, strlen(text), 0, &s, &count, &e), 0);
    assert_int_equal(count, 2);
    assert_string_equal(s.config, "a.json");
    assert_string_equal(s.names[1], "y:2");
    assert_string_equal(s.layers[0], "1/layer.tar");
    assert_int_equal(saved_read(text, strlen(text), 1, &s, &count, &e), 0);
    assert_int_equal(s.name_count, 0);
    assert_int_equal(saved_read(text, strlen(text), 2, &s, &count, &e), -1);
    assert_int_equal(saved_read("[]", 2, 0, &s, &count, &e), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_index_is_read_and_the_platform_chosen),
        cmocka_unit_test(test_a_manifest_is_read),
        cmocka_unit_test(test_texts_that_are_refused),
        cmocka_unit_test(test_a_configuration_is_read),
        cmocka_unit_test(test_a_list_of_docker_s_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
