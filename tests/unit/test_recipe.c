/* The files of templates: what each key may be, and how each can be wrong. */
#include "unit.h"

#include "base/banned.h"
#include "base/err.h"
#include "config/recipe.h"

static struct recipe *parse(const char *text, struct pd_err *e)
{
    return recipe_parse("t.template", "t", text, strlen(text), e);
}

static void expect(const char *text, const char *why)
{
    struct pd_err e = {.msg = ""};
    struct recipe *r = parse(text, &e);
    if (r)
        fail_msg("taken, though it is wrong: %s", text);
    if (e.code != PD_INVALID || !strstr(e.msg, why))
        fail_msg("'%s' for %s", e.msg, text);
}

static void test_every_key(void **state)
{
    (void)state;
    static const char text[] = "# a comment\n"
                               "title = An editor = good # not a comment\n"
                               "\n"
                               "   # another\n"
                               "from = image:debian:12\n"
                               "programs = code-server  node\n"
                               "programs = git\n"
                               "packages = npm:code-server@4 pip:x[y]>=1,<2 apt:git\n"
                               "packages_from = registry.npmjs.org *.debian.org:80\n"
                               "allow = api.example.com\n"
                               "secret = KEY name api.example.com\n"
                               "secret = KEY name other.example.com:8443\n"
                               "env = A=1 = 2\n"
                               "env = EMPTY=\n"
                               "file = ~/.config/x.toml\n"
                               "    [section]\n"
                               "      indented = yes\n"
                               "\n"
                               "    # is text\n"
                               "\n"
                               "file = /workspace/empty\n"
                               "start = first\n"
                               "    second\n"
                               "ready = port 8080\n"
                               "ready_within = 1.5s\n"
                               "port = 8080 Editor of all\n"
                               "port = 9000\n"
                               "memory = 2G\n"
                               "cpu = 0.5\n"
                               "pids = 100\n"
                               "disk = 1G";
    struct pd_err e = {.msg = ""};
    struct recipe *r = parse(text, &e);
    if (!r)
        fail_msg("%s", e.msg);

    assert_string_equal(r->name, "t");
    assert_string_equal(r->title, "An editor = good # not a comment");
    assert_string_equal(r->from, "base");
    assert_string_equal(r->image, "debian:12");
    assert_int_equal(r->programs.count, 3);
    assert_string_equal(r->programs.items[2], "git");
    assert_int_equal(r->packages.count, 3);
    assert_string_equal(r->packages.items[1], "pip:x[y]>=1,<2");
    assert_int_equal(r->packages_from.count, 2);
    assert_int_equal(r->secrets.count, 2);
    assert_string_equal(r->env.items[0], "A=1 = 2");
    assert_string_equal(r->env.items[1], "EMPTY=");
    assert_int_equal(r->file_count, 2);
    assert_string_equal(r->files[0].path, "~/.config/x.toml");
    assert_string_equal(r->files[0].content, "[section]\n  indented = yes\n\n# is text");
    assert_string_equal(r->files[1].content, "");
    assert_string_equal(r->start, "first\nsecond");
    assert_int_equal(r->ready_port, 8080);
    assert_int_equal(r->ready_within_ms, 1500);
    assert_int_equal(r->port_count, 2);
    assert_string_equal(r->ports[0].title, "Editor of all");
    assert_string_equal(r->ports[1].title, "");
    assert_true(r->memory == UINT64_C(2) << 30 && r->disk == UINT64_C(1) << 30);
    assert_true(r->cpu_milli == 500 && r->pids == 100);
    recipe_free(r);
}

static void test_nothing_is_a_template_too(void **state)
{
    (void)state;
    struct pd_err e;
    struct recipe *r = parse("", &e);
    assert_non_null(r);
    assert_string_equal(r->from, "default");
    assert_string_equal(r->title, "");
    assert_null(r->start);
    assert_int_equal(r->ready_within_ms, 60000);
    recipe_free(r);
}

static void test_what_is_wrong_is_named_with_its_line(void **state)
{
    (void)state;
    expect("title = a\nnonsense", "t.template:2: 'nonsense' is not `key = value`");
    expect("colour = red", "t.template:1: there is no key 'colour': docs/templates.md");
    expect("title =", "t.template:1: title: has no value");
    expect("title = a\ntitle = b", "t.template:2: title: is given twice");
    expect("    lost", "t.template:1: a line that begins with blanks belongs to a value");
    expect("title = a\n    b", "title: is one line");

    expect("from = nobody", "from: is default, base, restricted, or image:");
    expect("from = image:a b", "t.template:1: from: ");

    expect("programs = -rf", "programs: names of programs");
    expect("programs = a;b", "programs: names of programs");
    expect("programs = x\npackages = deb:x",
           "packages: packages are npm:NAME, pip:NAME or apt:NAME");
    expect("programs = x\npackages = npm:--global", "this is no name of a package");
    expect("programs = x\npackages = npm:$(x)", "this is no name of a package");
    expect("packages = npm:x", "say by programs what they bring");

    expect("packages_from = example.com", "packages_from: there are no packages");
    expect("allow = http://x", "t.template:1: allow: ");
    expect("secret = KEY", "t.template:1: secret: ");
    expect("secret = A n x.example\nsecret = A m x.example",
           "this variable has another secret already");
    expect("secret = A n x.example\nsecret = A n x.example",
           "t.template:2: secret: is given twice");

    expect("env = 1A=2", "env: is NAME=VALUE");
    expect("env = A", "env: is NAME=VALUE");
    expect("file = relative", "file: is a path that begins with / or ~/");
    expect("file = /a/../b", "file: is a path that begins with / or ~/");
    expect("file = /a/", "file: is a path that begins with / or ~/");

    expect("ready = port 80", "ready: there is nothing to start");
    expect("start = x\nready = port 0", "t.template:2: ready: the port: ");
    expect("start = x\nready = a\nready = b", "t.template:3: ready: is given twice");
    expect("start = x\nready = a\nready = port 1", "t.template:3: ready: is given twice");
    expect("start = x\nready_within = 1h", "t.template:2: ready_within: the time: ");
    expect("start = x\nready_within = 0s", "is out of range: more than 0");

    expect("port = 65536 x", "t.template:1: port: the port: ");
    expect("port = 80\nport = 80 x", "t.template:2: port: this one is given twice");
    expect("memory = 1", "t.template:1: memory: the size: ");
    expect("memory = 1G\nmemory = 1G", "t.template:2: memory: is given twice");
    expect("file = ~/a\n    one\n\n    two\nbad", "t.template:5: 'bad'");

    expect("title = \033[31m", "t.template:1: has a control character");
    expect("title = a\r\n", "t.template:1: has a control character");
}

static void test_bounds(void **state)
{
    (void)state;
    struct pd_err e;
    char text[32 * 33 * 8] = "";
    size_t n = 0;

    for (int i = 0; i < 33; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "port = %d\n", i + 1);
    expect(text, "t.template:33: port: there are more than 32");
    n = 0;
    for (int i = 0; i < 33; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "env = A%d=\n", i);
    expect(text, "t.template:33: env: there are more than 32");

    char *large = malloc(RECIPE_TEXT_MAX + 1);
    memset(large, '\n', RECIPE_TEXT_MAX + 1);
    assert_null(recipe_parse("t.template", "t", large, RECIPE_TEXT_MAX + 1, &e));
    assert_non_null(strstr(e.msg, "is larger than 65536 bytes"));
    struct recipe *r = recipe_parse("t.template", "t", large, RECIPE_TEXT_MAX, &e);
    assert_non_null(r);
    recipe_free(r);
    free(large);
}

static void test_names(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "code-server", "x_1", "9"};
    static const char *const bad[] = {"",           "Base", "base", "default",
                                      "restricted", "-a",   "a.b",  "a/b"};
    struct pd_err e;
    char longest[RECIPE_NAME_MAX + 2] = "";

    for (size_t i = 0; i < COUNT(good); i++)
        assert_true(recipe_is_name(good[i]));
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(recipe_is_name(bad[i]));
    memset(longest, 'a', RECIPE_NAME_MAX);
    assert_true(recipe_is_name(longest));
    longest[RECIPE_NAME_MAX] = 'a';
    longest[RECIPE_NAME_MAX + 1] = 0;
    assert_false(recipe_is_name(longest));
    assert_null(recipe_parse("Bad.template", "Bad", "", 0, &e));
    assert_non_null(strstr(e.msg, "is no name for a template"));
}

/* Those that the program carries are good ones, and a directory's take their place. */
static void test_those_of_the_program(void **state)
{
    (void)state;
    struct recipes all = {0};
    struct pd_err e = {.msg = ""};

    if (recipes_load("", &all, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(all.count, 4);
    for (unsigned i = 1; i < all.count; i++)
        assert_true(strcmp(all.at[i - 1]->name, all.at[i]->name) < 0);
    assert_int_equal(recipes_find(&all, "code-server")->ready_port, 8080);
    assert_non_null(recipes_find(&all, "codex"));
    assert_null(recipes_find(&all, "base"));
    recipes_done(&all);

    assert_int_equal(recipes_load("/no/such/directory", &all, &e), -1);
    assert_non_null(strstr(e.msg, "template_dir: open /no/such/directory"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_key),
        cmocka_unit_test(test_nothing_is_a_template_too),
        cmocka_unit_test(test_what_is_wrong_is_named_with_its_line),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_those_of_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
