/* How this works: the text is first scanned for its depth and its number of values, without
 * recursion, so that jansson (which recurses, and needs some 300 bytes for "{}") only sees what
 * is bounded. Each getter notes its name; what is in the object and was not noted is unknown. */
#include "api/fields.h"

#include "base/banned.h"
#include "base/base64.h"
#include "base/clock.h"
#include "base/json.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>

#define QUOTE_MAX    40 /* bytes of a value that an error repeats */
#define ENV_NAME_MAX 255
#define MAP_KEY_MAX  128

/* ---- errors ---- */

/* Appends at most `max` bytes of foreign text, with control characters escaped and no UTF-8
 * sequence cut in two. */
static void put_foreign(struct buf *b, const char *text, size_t len, size_t max)
{
    size_t cut = len;
    if (len > max) {
        cut = max;
        while (cut > 0 && ((unsigned char)text[cut] & 0xc0) == 0x80)
            cut--;
    }

    for (size_t i = 0; i < cut; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7f)
            (void)buf_printf(b, "\\x%02x", c);
        else
            (void)buf_putc(b, (char)c);
    }

    if (cut < len)
        (void)buf_puts(b, "...");
}

/* How an error names a value. */
static void put_value(struct buf *b, const json_t *v)
{
    char text[64];

    switch (json_typeof(v)) {
    case JSON_STRING:
        (void)buf_putc(b, '\'');
        put_foreign(b, json_string_value(v), json_string_length(v), QUOTE_MAX);
        (void)buf_putc(b, '\'');
        break;
    case JSON_OBJECT:
        (void)buf_puts(b, "an object");
        break;
    case JSON_ARRAY:
        (void)buf_puts(b, "an array");
        break;
    default: {
        size_t n = json_dumpb(v, text, sizeof text, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        put_foreign(b, text, n < sizeof text ? n : sizeof text, QUOTE_MAX);
    }
    }
}

static void note(struct fields *f, const char *path, enum pd_code code, const char *text)
{
    struct fields *root = f->root;
    if (root->failed)
        return;

    root->failed = true;
    (void)snprintf(root->bad, sizeof root->bad, "%s", path);
    if (*path)
        (void)pd_fail(&root->err, code, "%s: %s", path, text);
    else
        (void)pd_fail(&root->err, code, "%s", text);
}

static void put_name(struct buf *b, const char *name)
{
    put_foreign(b, *name ? name : "\"\"", *name ? strlen(name) : 2, QUOTE_MAX);
}

/* The full name of a member. Foreign names are cut and escaped. */
static void put_path(struct buf *b, const struct fields *f, const char *name, const char *item)
{
    (void)buf_puts(b, f->path);
    put_name(b, name);
    if (item) {
        (void)buf_putc(b, '.');
        put_name(b, item);
    }
}

/* "PATH: VALUE REASON"; returns 0. `item` is a member of the member, or NULL. */
static int refuse_item(struct fields *f, const char *name, const char *item, const json_t *v,
                       const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static int refuse_item(struct fields *f, const char *name, const char *item, const json_t *v,
                       const char *fmt, ...)
{
    char reason[sizeof f->err.msg];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(reason, sizeof reason, fmt, ap);
    va_end(ap);

    auto_buf path = BUF_INIT(1024), text = BUF_INIT(1024);
    put_path(&path, f, name, item);
    if (v) {
        put_value(&text, v);
        (void)buf_putc(&text, ' ');
    }
    (void)buf_puts(&text, reason);

    const char *p = buf_cstr(&path), *t = buf_cstr(&text);
    note(f, p ? p : "?", PD_INVALID, t ? t : reason);
    return 0;
}

#define refuse(f, name, v, ...) refuse_item(f, name, NULL, v, __VA_ARGS__)

int fields_refuse(struct fields *f, const char *name, const char *fmt, ...)
{
    char reason[sizeof f->err.msg];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(reason, sizeof reason, fmt, ap);
    va_end(ap);

    return f ? refuse(f, name, NULL, "%s", reason) : 0;
}

/* ---- parsing ---- */

/* Depth and number of values, as an upper bound: what is no JSON is jansson's to refuse. All but
 * NUL, over which jansson 2.14 reads as if it were not there. */
static int check_shape(const char *text, size_t len, struct pd_err *e)
{
    const char *nul = memchr(text, 0, len);
    if (nul)
        return pd_fail(e, PD_INVALID, "the body is not valid JSON: byte %zu is NUL",
                       (size_t)(nul - text));

    unsigned depth = 0, values = 1;
    int in_string = 0;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = 0;
            continue;
        }

        if (c == '"')
            in_string = 1;
        else if (c == '{' || c == '[') {
            values++;
            if (++depth > FIELDS_DEPTH_MAX)
                return pd_fail(e, PD_INVALID,
                               "the body is nested too deeply at byte %zu: at most %u levels", i,
                               FIELDS_DEPTH_MAX);
        } else if ((c == '}' || c == ']') && depth > 0)
            depth--;
        else if (c == ',')
            values++;

        if (values > FIELDS_VALUES_MAX)
            return pd_fail(e, PD_INVALID, "the body has too many values: at most %u",
                           FIELDS_VALUES_MAX);
    }
    return 0;
}

static int parse_failed(const json_error_t *je, struct pd_err *e)
{
    auto_buf text = BUF_INIT(256);

    put_foreign(&text, je->text, strlen(je->text), 120);
    const char *why = buf_cstr(&text);

    if (json_error_code(je) == json_error_out_of_memory)
        return pd_fail(e, PD_CAPACITY, "no memory for the body");
    return pd_fail(e, PD_INVALID, "the body is not valid %s: line %d, column %d: %s",
                   json_error_code(je) == json_error_invalid_utf8 ? "UTF-8" : "JSON", je->line,
                   je->column, why ? why : "");
}

static int parse(struct fields *f, const char *text, size_t len, unsigned flags, struct pd_err *e)
{
    size_t blank = 0;
    while (blank < len && strchr(" \t\r\n", text[blank]) && text[blank])
        blank++;

    if (blank == len) {
        if (!(flags & FIELDS_MAY_BE_EMPTY))
            return pd_fail(e, PD_INVALID, "the body is empty: a JSON object is required");
        f->object = json_object();
        return f->object ? 0 : pd_fail(e, PD_CAPACITY, "no memory for the body");
    }

    if (check_shape(text, len, e) < 0)
        return -1;

    json_error_t je = {.line = 0};
    json_t *v = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
    /* A number beyond 64 bits is read again as a real one, so that the getter can name its member.
     */
    if (!v && json_error_code(&je) == json_error_numeric_overflow)
        v = json_loadb(text, len,
                       JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, &je);

    if (!v)
        return parse_failed(&je, e);

    if (!json_is_object(v)) {
        auto_buf what = BUF_INIT(256);
        put_value(&what, v);
        const char *shown = buf_cstr(&what);
        json_decref(v);
        return pd_fail(e, PD_INVALID, "the body must be a JSON object, not %s", shown ? shown : "");
    }

    f->object = v;
    return 0;
}

int fields_parse(struct fields *f, const void *text, size_t len, unsigned flags, struct pd_err *e)
{
    *f = (struct fields){.root = f, .flags = flags};
    if (parse(f, text ? text : "", text ? len : 0, flags, &f->err) == 0)
        return 0;

    f->failed = true;
    if (e)
        *e = f->err;
    return -1;
}

void fields_done(struct fields *f)
{
    while (f->next) {
        struct fields *gone = f->next;
        f->next = gone->next;
        free(gone);
    }

    json_decref(f->object);
    f->object = NULL;
}

/* ---- finding ---- */

static json_t *look_up(struct fields *f, const char *name)
{
    unsigned i = 0;
    while (i < f->known_count && strcmp(f->known[i], name) != 0)
        i++;
    if (i == f->known_count) {
        if (i == FIELDS_KNOWN_MAX) {
            note(f, name, PD_INTERNAL, "too many members are asked for");
            return NULL;
        }
        f->known[f->known_count++] = name;
    }

    json_t *v = json_object_get(f->object, name);
    return json_is_null(v) ? NULL : v;
}

/* The member, or NULL when there is nothing to do for the getter. */
static json_t *find(struct fields *f, const char *name, enum field_need need)
{
    if (!f)
        return NULL;

    json_t *v = look_up(f, name);
    if (f->root->failed)
        return NULL;
    if (!v && need == FIELD_REQUIRED)
        refuse(f, name, NULL, "is required");
    return v;
}

bool fields_is_null(struct fields *f, const char *name)
{
    return f && !look_up(f, name) && json_is_null(json_object_get(f->object, name));
}

enum field_kind fields_kind(struct fields *f, const char *name)
{
    json_t *v = f ? look_up(f, name) : NULL;
    if (!v)
        return FIELD_ABSENT;

    switch (json_typeof(v)) {
    case JSON_STRING:
        return FIELD_STRING;
    case JSON_INTEGER:
    case JSON_REAL:
        return FIELD_NUMBER;
    case JSON_OBJECT:
        return FIELD_OBJECT;
    case JSON_ARRAY:
        return FIELD_ARRAY;
    default:
        return FIELD_BOOL;
    }
}

/* ---- scalars ---- */

static int read_text(struct fields *f, const char *name, enum field_need need, size_t min,
                     size_t max, bool quoted, const char **ret)
{
    json_t *v = find(f, name, need);
    json_t *told = quoted ? v : NULL;
    if (!v)
        return 0;
    if (!json_is_string(v))
        return refuse(f, name, told, "is not a string");

    size_t len = json_string_length(v);
    if (len < min && len == 0)
        return refuse(f, name, NULL, "must not be empty");
    if (len < min || len > max)
        return refuse(f, name, told, "has %zu bytes: %zu to %zu are valid", len, min, max);

    *ret = json_string_value(v);
    return 1;
}

int fields_str(struct fields *f, const char *name, enum field_need need, size_t min, size_t max,
               const char **ret)
{
    return read_text(f, name, need, min, max, true, ret);
}

int fields_secret(struct fields *f, const char *name, enum field_need need, size_t min, size_t max,
                  const char **ret)
{
    return read_text(f, name, need, min, max, false, ret);
}

int fields_u64(struct fields *f, const char *name, enum field_need need, uint64_t min, uint64_t max,
               uint64_t *ret)
{
    json_t *v = find(f, name, need);
    if (!v)
        return 0;
    if (!json_is_number(v))
        return refuse(f, name, v, "is not a number: %" PRIu64 " to %" PRIu64 " is valid", min, max);

    uint64_t n = 0;
    int fits = 0, whole = 1;
    if (json_is_integer(v)) {
        fits = json_integer_value(v) >= 0;
        n = (uint64_t)json_integer_value(v);
    } else {
        double d = json_real_value(v);
        /* Above 2^53 a real number no longer says which whole one was meant. */
        fits = d >= 0 && d <= 0x1p53;
        n = fits ? (uint64_t)d : 0;
        whole = !fits || (double)n == d;
    }

    if (!whole)
        return refuse(f, name, v, "is not a whole number");
    if (!fits || n < min || n > max)
        return refuse(f, name, v, "is out of range: %" PRIu64 " to %" PRIu64 " is valid", min, max);

    *ret = n;
    return 1;
}

int fields_i64(struct fields *f, const char *name, enum field_need need, int64_t min, int64_t max,
               int64_t *ret)
{
    json_t *v = find(f, name, need);
    if (!v)
        return 0;

    /* Above 2^53 a real number no longer says which whole one was meant. */
    double d = json_number_value(v);
    if (!json_is_number(v) ||
        (json_is_real(v) && (d < -0x1p53 || d > 0x1p53 || d != (double)(int64_t)d)))
        return refuse(f, name, v, "is not a whole number");

    int64_t n = json_is_integer(v) ? json_integer_value(v) : (int64_t)d;
    if (n < min || n > max)
        return refuse(f, name, v, "is out of range: %" PRId64 " to %" PRId64 " is valid", min, max);

    *ret = n;
    return 1;
}

/* A number times `scale`, rounded, in [min, max]. */
static int scaled(struct fields *f, const char *name, enum field_need need, uint64_t scale,
                  const char *unit, uint64_t min, uint64_t max, uint64_t *ret)
{
    json_t *v = find(f, name, need);
    if (!v)
        return 0;

    double low = (double)min / (double)scale, high = (double)max / (double)scale;
    if (!json_is_number(v))
        return refuse(f, name, v, "is not a number: %.10g to %.10g%s is valid", low, high, unit);

    uint64_t n = 0;
    int fits;
    if (json_is_integer(v)) {
        json_int_t i = json_integer_value(v);
        fits = i >= 0 && (uint64_t)i <= UINT64_MAX / scale;
        n = fits ? (uint64_t)i * scale : 0;
    } else {
        double d = json_real_value(v) * (double)scale + 0.5;
        fits = json_real_value(v) >= 0 && d < 0x1p63;
        n = fits ? (uint64_t)d : 0;
        /* A value above 0 must not be rounded to 0, which often means "no limit". */
        if (fits && n == 0 && json_real_value(v) > 0)
            fits = 0;
    }

    if (!fits || n < min || n > max)
        return refuse(f, name, v, "is out of range: %.10g to %.10g%s is valid", low, high, unit);

    *ret = n;
    return 1;
}

int fields_seconds(struct fields *f, const char *name, enum field_need need, uint64_t min_ns,
                   uint64_t max_ns, uint64_t *ret_ns)
{
    return scaled(f, name, need, NS_PER_S, " seconds", min_ns, max_ns, ret_ns);
}

int fields_seconds_ms(struct fields *f, const char *name, enum field_need need, uint64_t min_ms,
                      uint64_t max_ms, uint64_t *ret_ms)
{
    return scaled(f, name, need, 1000, " seconds", min_ms, max_ms, ret_ms);
}

int fields_milli(struct fields *f, const char *name, enum field_need need, uint64_t min,
                 uint64_t max, uint64_t *ret)
{
    return scaled(f, name, need, 1000, "", min, max, ret);
}

int fields_bool(struct fields *f, const char *name, enum field_need need, bool *ret)
{
    json_t *v = find(f, name, need);
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return refuse(f, name, v, "is not a boolean: true or false is valid");

    *ret = json_is_true(v);
    return 1;
}

int fields_enum(struct fields *f, const char *name, enum field_need need, const char *const *names,
                unsigned *ret)
{
    json_t *v = find(f, name, need);
    if (!v)
        return 0;

    for (unsigned i = 0; names[i] && json_is_string(v); i++)
        if (!strcmp(names[i], json_string_value(v))) {
            *ret = i;
            return 1;
        }

    char list[160] = "";
    for (size_t i = 0, n = 0; names[i] && n < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", names[i]);
    return refuse(f, name, v, "is not one of: %s", list);
}

int fields_mode(struct fields *f, const char *name, enum field_need need, uint32_t *ret)
{
    json_t *v = find(f, name, need);
    if (!v)
        return 0;

    uint32_t mode = 0;
    const char *text = json_is_string(v) ? json_string_value(v) : "";
    size_t len = strspn(text, "01234567");
    if (len < 1 || len > 4 || text[len])
        return refuse(f, name, v, "is not a mode: a string of octal digits such as \"0644\" is");

    for (size_t i = 0; i < len; i++)
        mode = mode * 8 + (uint32_t)(text[i] - '0');
    *ret = mode;
    return 1;
}

int fields_base64(struct fields *f, const char *name, enum field_need need, size_t max,
                  struct buf *out)
{
    json_t *v = find(f, name, need);
    if (!v)
        return 0;
    if (!json_is_string(v))
        return refuse(f, name, v, "is not a string of base64");

    const char *text = json_string_value(v);
    size_t len = json_string_length(v), at = 0, before = out->len;
    if (len / 4 * 3 > max + 2)
        return refuse(f, name, NULL, "has about %zu bytes: at most %zu are valid", len / 4 * 3,
                      max);

    switch (base64_decode(out, text, len, &at)) {
    case BASE64_LENGTH:
        return refuse(f, name, v, "is not base64: the length is no multiple of 4");
    case BASE64_DIGIT:
        return refuse(f, name, v, "is not base64: see character %zu", at + 1);
    case BASE64_BITS:
        return refuse(f, name, v, "is not base64: its last bits are not zero");
    case BASE64_FULL:
        return refuse(f, name, NULL, "has about %zu bytes: that is too much", len / 4 * 3);
    case BASE64_GOOD:
        break;
    }

    if (out->len - before <= max)
        return 1;

    size_t bytes = out->len - before;
    out->len = before;
    return refuse(f, name, NULL, "has %zu bytes: at most %zu are valid", bytes, max);
}

/* ---- lists and objects ---- */

int fields_str_list(struct fields *f, const char *name, enum field_need need, size_t min,
                    size_t max, size_t item_max, struct msg_list_writer *out)
{
    json_t *v = find(f, name, need);
    if (!v)
        return 0;
    if (!json_is_array(v))
        return refuse(f, name, v, "is not an array of strings");

    size_t count = json_array_size(v);
    if (count < min || count > max)
        return refuse(f, name, NULL, "has %zu items: %zu to %zu are valid", count, min, max);

    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(v, i);
        char index[24];
        (void)snprintf(index, sizeof index, "%zu", i);
        if (!json_is_string(item))
            return refuse_item(f, name, index, item, "is not a string");
        if (json_string_length(item) > item_max)
            return refuse_item(f, name, index, item, "has %zu bytes: at most %zu are valid",
                               json_string_length(item), item_max);
        if (msg_list_add(out, json_string_value(item)) < 0)
            return refuse(f, name, NULL, "is too large: at most %zu bytes in all", out->text.max);
    }
    return 1;
}

static bool is_env_name(const char *name)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
    size_t len = strspn(name, letters);
    return len > 0 && len <= ENV_NAME_MAX && !name[len] && !(name[0] >= '0' && name[0] <= '9');
}

static json_t *find_object(struct fields *f, const char *name, enum field_need need)
{
    json_t *v = find(f, name, need);
    if (v && !json_is_object(v)) {
        refuse(f, name, v, "is not an object");
        return NULL;
    }
    return v;
}

int fields_env(struct fields *f, const char *name, enum field_need need,
               struct msg_list_writer *set, struct msg_list_writer *unset)
{
    json_t *object = find_object(f, name, need), *v;
    const char *key;
    if (!object)
        return 0;

    json_object_foreach(object, key, v)
    {
        if (!is_env_name(key))
            return refuse_item(f, name, key, NULL,
                               "is no name of a variable: letters, digits and _ are valid, not "
                               "beginning with a digit, at most %d",
                               ENV_NAME_MAX);
        if (!json_is_string(v) && !(unset && json_is_null(v)))
            return refuse_item(f, name, key, v,
                               unset ? "is not a string or null" : "is not a string");

        int r;
        if (json_is_null(v)) {
            r = msg_list_add(unset, key);
        } else {
            auto_buf text = BUF_INIT(set->text.max);
            (void)buf_printf(&text, "%s=%s", key, json_string_value(v));
            const char *pair = buf_cstr(&text);
            r = pair && !text.overflow ? msg_list_add(set, pair) : -1;
        }

        if (r < 0)
            return refuse(f, name, NULL, "is too large: at most %zu bytes and %u variables in all",
                          set->text.max, MSG_ARGS_MAX);
    }
    return 1;
}

int fields_strings(struct fields *f, const char *name, enum field_need need, size_t max,
                   size_t max_bytes, struct buf *out)
{
    json_t *object = find_object(f, name, need), *v;
    const char *key;
    if (!object)
        return 0;

    if (json_object_size(object) > max)
        return refuse(f, name, NULL, "has %zu members: at most %zu are valid",
                      json_object_size(object), max);

    auto_buf text = BUF_INIT(max_bytes);
    struct json j = JSON_INIT(&text);
    json_open(&j, '{');
    json_object_foreach(object, key, v)
    {
        if (!*key || strlen(key) > MAP_KEY_MAX)
            return refuse_item(f, name, key, NULL, "is no valid name: 1 to %d bytes are",
                               MAP_KEY_MAX);
        if (!json_is_string(v))
            return refuse_item(f, name, key, v, "is not a string");
        json_key(&j, key);
        json_str(&j, json_string_value(v), json_string_length(v));
    }

    json_close(&j, '}');
    if (text.overflow || buf_put(out, text.data, text.len) < 0)
        return refuse(f, name, NULL, "is too large: at most %zu bytes as JSON", max_bytes);
    return 1;
}

int fields_json(struct fields *f, const char *name, enum field_need need, size_t max_bytes,
                struct buf *out)
{
    json_t *v = find(f, name, need);
    if (!v)
        return 0;

    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    int good = text && strlen(text) <= max_bytes && buf_puts(out, text) == 0;
    free(text);
    return good ? 1 : refuse(f, name, NULL, "is too large: at most %zu bytes as JSON", max_bytes);
}

/* The fields of an object inside f; the same ones when it is asked for again. */
static struct fields *enter(struct fields *f, const char *name, json_t *v, const char *index)
{
    for (struct fields *known = f->root->next; known; known = known->next)
        if (known->object == v)
            return known;

    struct fields *inner = calloc(1, sizeof *inner);
    if (!inner) {
        note(f, name, PD_CAPACITY, "no memory");
        return NULL;
    }

    inner->object = v;
    inner->root = f->root;
    (void)snprintf(inner->path, sizeof inner->path, "%.*s%.50s%s.", FIELDS_PATH_MAX - 64, f->path,
                   name, index);

    inner->next = f->root->next;
    f->root->next = inner;
    return inner;
}

struct fields *fields_object(struct fields *f, const char *name, enum field_need need)
{
    json_t *v = find_object(f, name, need);
    return v ? enter(f, name, v, "") : NULL;
}

struct fields *fields_item(struct fields *f, const char *name, size_t max, size_t i)
{
    json_t *v = find(f, name, FIELD_OPTIONAL);
    char index[12];

    if (v && !json_is_array(v))
        refuse(f, name, v, "is not an array of objects");
    else if (v && json_array_size(v) > max)
        refuse(f, name, NULL, "has %zu items: at most %zu are valid", json_array_size(v), max);
    if (!v || f->root->failed || i >= json_array_size(v))
        return NULL;

    json_t *item = json_array_get(v, i);
    (void)snprintf(index, sizeof index, ".%u", (unsigned)i);
    if (!json_is_object(item)) {
        refuse_item(f, name, index + 1, item, "is not an object");
        return NULL;
    }
    return enter(f, name, item, index);
}

/* ---- the end ---- */

static void refuse_unknown(struct fields *f)
{
    const char *key;

    json_t *v;
    json_object_foreach(f->object, key, v)
    {
        unsigned i = 0;
        while (i < f->known_count && strcmp(f->known[i], key) != 0)
            i++;
        if (i < f->known_count)
            continue;

        char list[200] = "none";
        for (size_t k = 0, n = 0; k < f->known_count && n < sizeof list; k++)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", k ? ", " : "", f->known[k]);
        refuse(f, key, NULL, "unknown field; valid are: %s", list);
        return;
    }
}

static int finish(const struct fields *root, struct pd_err *e)
{
    if (!root->failed)
        return 0;
    if (e)
        *e = root->err;
    return -1;
}

int fields_finish(struct fields *f, struct pd_err *e)
{
    int open = f->flags & FIELDS_OPEN;
    if (!f->failed && !open)
        refuse_unknown(f);
    for (struct fields *inner = f->next; inner && !f->failed && !open; inner = inner->next)
        refuse_unknown(inner);

    return finish(f, e);
}

int fields_finish_object(struct fields *f, struct pd_err *e)
{
    if (!f->root->failed)
        refuse_unknown(f);
    return finish(f->root, e);
}

const char *fields_bad(const struct fields *f)
{
    return f->failed && *f->bad ? f->bad : NULL;
}
