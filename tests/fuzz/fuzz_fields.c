/* Any bytes as the body of a request, read by a handler that asks for every kind of member.
 *
 * Properties: an accepted body is UTF-8 without NUL and within the depth; a getter that says 1
 * gives a value within its bounds, one that says 0 leaves the output alone; after an error nothing
 * is given any more; a refusal is PD_INVALID and its message begins with the member's name; reading
 * the same body again gives the same answer. */
#include "api/fields.h"
#include "base/buf.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define UNTOUCHED 0x5a5a5a5a5a5a5a5aULL

static void require(int holds)
{
    if (!holds)
        abort();
}

/* A second opinion on the depth: counts every bracket outside strings, from the front. */
static void check_depth(const uint8_t *data, size_t size)
{
    int depth = 0, quoted = 0;
    for (size_t i = 0; i < size; i++) {
        if (quoted && data[i] == '\\') {
            i++;
        } else if (data[i] == '"') {
            quoted = !quoted;
        } else if (!quoted) {
            depth += (data[i] == '{' || data[i] == '[') - (data[i] == '}' || data[i] == ']');
            require(depth <= FIELDS_DEPTH_MAX);
        }
    }
    require(depth == 0 && !quoted);
}

static int is_failed(struct fields *f)
{
    return f->root->failed;
}

static void read_string(struct fields *f)
{
    const char *s = "untouched";
    int before = is_failed(f), r = fields_str(f, "s", FIELD_OPTIONAL, 1, 20, &s);
    require(r ? strlen(s) >= 1 && strlen(s) <= 20 : !strcmp(s, "untouched"));
    require(!(before && r));
}

static void read_numbers(struct fields *f)
{
    uint64_t n = UNTOUCHED, t = UNTOUCHED, ms = UNTOUCHED, cpu = UNTOUCHED;
    int r = fields_u64(f, "n", FIELD_REQUIRED, 3, 1000, &n);
    require(r ? n >= 3 && n <= 1000 : n == UNTOUCHED);
    r = fields_seconds(f, "t", FIELD_OPTIONAL, 1, UINT64_MAX, &t);
    require(r ? t >= 1 : t == UNTOUCHED);
    r = fields_seconds_ms(f, "ms", FIELD_OPTIONAL, 0, 5000, &ms);
    require(r ? ms <= 5000 : ms == UNTOUCHED);
    r = fields_milli(f, "cpu", FIELD_OPTIONAL, 10, 4000, &cpu);
    require(r ? cpu >= 10 && cpu <= 4000 : cpu == UNTOUCHED);
}

static void read_choices(struct fields *f)
{
    static const char *const names[] = {"one", "two", NULL};
    bool set = true, unset = false;
    unsigned choice = 7;
    uint32_t mode = 0xffffff;
    int r = fields_bool(f, "b", FIELD_OPTIONAL, &set);
    require(fields_bool(f, "b", FIELD_OPTIONAL, &unset) == r);
    require(r ? set == unset : set && !unset);
    r = fields_enum(f, "e", FIELD_OPTIONAL, names, &choice);
    require(r ? choice < 2 : choice == 7);
    r = fields_mode(f, "mode", FIELD_OPTIONAL, &mode);
    require(r ? mode <= 07777 : mode == 0xffffff);
}

/* What was decoded encodes to the same text. */
static void read_base64(struct fields *f)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    auto_buf out = BUF_INIT(64), text = BUF_INIT(256);
    int r = fields_base64(f, "b64", FIELD_OPTIONAL, 30, &out);
    require(r ? out.len <= 30 : out.len == 0);
    if (!r)
        return;

    for (size_t i = 0; i < out.len; i += 3) {
        uint32_t word = 0;
        for (size_t k = 0; k < 3; k++)
            word = word << 8 | (i + k < out.len ? out.data[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            (void)buf_putc(&text, i + k > out.len ? '=' : digits[word >> (18 - 6 * k) & 63]);
    }

    const char *s = NULL;
    require(fields_str(f, "b64", FIELD_REQUIRED, 0, 100, &s) == 1);
    require(!strcmp(s, buf_cstr(&text)));
}

static void read_lists(struct fields *f)
{
    struct msg_list_writer list = {.text = BUF_INIT(64)}, set = {.text = BUF_INIT(64)},
                           unset = {.text = BUF_INIT(64)};
    if (fields_str_list(f, "l", FIELD_OPTIONAL, 1, 5, 9, &list))
        require(list.count >= 1 && list.count <= 5 && !list.text.overflow);

    if (fields_env(f, "env", FIELD_OPTIONAL, &set, &unset)) {
        struct msg_list l = msg_list_of(&set);
        uint32_t pos = 0;
        for (const char *word; (word = msg_list_next(&l, &pos));)
            require(strchr(word, '=') > word && strspn(word, "0123456789") == 0);
        l = msg_list_of(&unset);
        pos = 0;
        for (const char *word; (word = msg_list_next(&l, &pos));)
            require(*word && !strchr(word, '='));
    }
    msg_list_writer_done(&list);
    msg_list_writer_done(&set);
    msg_list_writer_done(&unset);

    auto_buf map = BUF_INIT(256);
    if (fields_strings(f, "map", FIELD_OPTIONAL, 4, 100, &map)) {
        auto_fields again = {0};
        require(map.len <= 100 && fields_parse(&again, map.data, map.len, 0, NULL) == 0);
    } else {
        require(map.len == 0);
    }
}

static int read_all(const uint8_t *data, size_t size, struct pd_err *e)
{
    auto_fields f = {0};
    if (fields_parse(&f, data, size, FIELDS_MAY_BE_EMPTY, e) < 0) {
        require(fields_finish(&f, e) == -1 && !fields_bad(&f));
        return -1;
    }
    check_depth(data, size);

    require(!memchr(data, 0, size));
    read_string(&f);
    read_numbers(&f);
    read_choices(&f);
    read_base64(&f);
    read_lists(&f);
    struct fields *o = fields_object(&f, "o", FIELD_OPTIONAL);
    read_string(o ? o : &f);

    if (o) {
        read_numbers(o);
        struct fields *inner = fields_object(o, "o", FIELD_OPTIONAL);
        if (inner)
            read_lists(inner);
    }

    if (fields_finish(&f, e) == 0) {
        require(!fields_bad(&f) && fields_kind(&f, "n") == FIELD_NUMBER);
        return 0;
    }

    const char *bad = fields_bad(&f);
    require(bad && !strncmp(e->msg, bad, strlen(bad)));
    return -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact)
        return 0;
    memcpy(exact, data, size);

    struct pd_err e = {.msg = ""}, again = {.msg = ""};
    int r = read_all(exact, size, &e);
    require(read_all(exact, size, &again) == r && !strcmp(e.msg, again.msg));

    if (r < 0) {
        require(e.code == PD_INVALID && memchr(e.msg, 0, sizeof e.msg));
        for (const char *p = e.msg; *p; p++)
            require((unsigned char)*p >= 0x20 && *p != 0x7f);
    }
    free(exact);
    return 0;
}
