/* Tar headers: blocks of 512 bytes to entries, and back.
 *
 * Reading: a block is checked as a whole (checksum, then each number), its names are taken unless
 * an extended header has brought longer ones, and what that header said is forgotten with the
 * entry. Extended headers are pax records, or GNU's long names, which are one name each.
 *
 * Writing: a ustar block, with a pax header in front for what does not fit it: names longer than
 * 100 bytes, sizes from 8 GiB on, times before 1970 or beyond 33 bits. */
#include "init/tar.h"

#include "base/banned.h"
#include "base/err.h"

/* The header block, as ustar has it. GNU's uses the prefix for other things. */
struct block {
    char name[100];
    char mode[8];
    char uid[8];
    char gid[8];
    char size[12];
    char mtime[12];
    char checksum[8];
    char type;
    char link[100];
    char magic[6];
    char version[2];
    char user[32];
    char group[32];
    char major[8];
    char minor[8];
    char prefix[155];
    char rest[12];
};
_Static_assert(sizeof(struct block) == TAR_BLOCK, "a block is 512 bytes");

void tar_reader_done(struct tar_reader *r)
{
    buf_done(&r->path);
    buf_done(&r->link);
}

static int broken(struct pd_err *e, const char *what)
{
    return pd_fail(e, PD_INVALID, "not a tar archive, or a broken one: %s", what);
}

/* An octal number with blanks or NULs around it; with the high bit of the first byte set, GNU's
 * base 256. Empty is 0. */
static int number(const char *field, size_t len, int64_t *ret)
{
    const uint8_t *p = (const uint8_t *)field;
    uint64_t v = 0;

    if (p[0] & 0x80) {
        int negative = p[0] & 0x40;
        v = negative ? ~UINT64_C(0) << 6 | (p[0] & 0x3f) : p[0] & 0x3f;
        for (size_t i = 1; i < len; i++) {
            /* The top byte must hold nothing but copies of the sign. */
            uint64_t top = v >> 55;
            if (top != 0 && top != 0x1ff)
                return -1;
            v = v << 8 | p[i];
        }

        if (!negative && v > INT64_MAX)
            return -1;
        *ret = (int64_t)v;
        return 0;
    }

    size_t i = 0;
    while (i < len && (p[i] == ' '))
        i++;
    for (; i < len && p[i] >= '0' && p[i] <= '7'; i++) {
        if (v >> 60)
            return -1;
        v = v << 3 | (uint64_t)(p[i] - '0');
    }

    for (; i < len; i++)
        if (p[i] != ' ' && p[i] != 0)
            return -1;

    if (v > INT64_MAX)
        return -1;
    *ret = (int64_t)v;
    return 0;
}

/* Some old programs summed up signed bytes. */
static int checksum_ok(const uint8_t raw[TAR_BLOCK], const struct block *b)
{
    int64_t said, sum = 0, signed_sum = 0;
    size_t start = offsetof(struct block, checksum), end = start + sizeof b->checksum;

    for (size_t i = 0; i < TAR_BLOCK; i++) {
        uint8_t c = i >= start && i < end ? ' ' : raw[i];
        sum += c;
        signed_sum += (int8_t)c;
    }

    return number(b->checksum, sizeof b->checksum, &said) == 0 &&
           (said == sum || said == signed_sum);
}

/* A field that ends with a NUL or with its last byte. */
static int put_field(struct buf *out, const char *field, size_t size)
{
    return buf_put(out, field, strnlen(field, size));
}

/* The names of the block itself, unless an extended header had them. */
static int take_names(struct tar_reader *r, const struct block *b, struct pd_err *e)
{
    if (!r->has_path) {
        buf_clear(&r->path);
        if (!memcmp(b->magic, "ustar\0", 6) && b->prefix[0]) {
            put_field(&r->path, b->prefix, sizeof b->prefix);
            buf_putc(&r->path, '/');
        }
        put_field(&r->path, b->name, sizeof b->name);
    }

    if (!r->has_link) {
        buf_clear(&r->link);
        put_field(&r->link, b->link, sizeof b->link);
    }

    r->entry.path = buf_cstr(&r->path);
    r->entry.link = buf_cstr(&r->link);
    if (!r->entry.path || !r->entry.link)
        return pd_fail(e, PD_CAPACITY, "no memory for the names in an archive");
    return r->path.len ? 0 : broken(e, "an entry without a name");
}

static int take_type(struct tar_entry *t, char type, struct pd_err *e)
{
    size_t n = strlen(t->path);

    switch (type) {
    case '0':
    case 0:
    case '7':
        /* Archives older than ustar mark directories by a slash. */
        t->type = t->path[n - 1] == '/' ? TAR_DIR : TAR_FILE;
        return 0;
    case '1':
        t->type = TAR_HARDLINK;
        break;
    case '2':
        t->type = TAR_SYMLINK;
        break;
    case '3':
    case '4':
        t->type = TAR_DEVICE;
        return 0;
    case '5':
    case 'D':
        t->type = TAR_DIR;
        return 0;
    case '6':
        t->type = TAR_FIFO;
        return 0;
    case 'S':
        return pd_fail(e, PD_UNSUPPORTED,
                       "'%.120s' is stored as a sparse file; pack without --sparse", t->path);
    default:
        return pd_fail(e, PD_UNSUPPORTED, "'%.120s' is an entry of the unknown type 0x%02x",
                       t->path, (unsigned char)type);
    }

    return t->link[0] ? 0 : broken(e, "a link that leads nowhere");
}

static int meta_header(struct tar_reader *r, char type, int64_t size, struct pd_err *e)
{
    if (size < 0 || size > (int64_t)TAR_META_MAX)
        return broken(e, "an extended header that is too large");

    r->meta_type = type;
    r->meta_size = (uint64_t)size;
    return TAR_META;
}

static int is_zero(const uint8_t block[TAR_BLOCK])
{
    for (size_t i = 0; i < TAR_BLOCK; i++)
        if (block[i])
            return 0;
    return 1;
}

int tar_header(struct tar_reader *r, const uint8_t block[TAR_BLOCK], struct pd_err *e)
{
    struct block b;
    int64_t size, mode, uid, gid, mtime;

    if (is_zero(block))
        return r->has_path || r->has_link || r->has_size ? broken(e, "a description of nothing")
                                                         : TAR_END;

    memcpy(&b, block, sizeof b);
    if (!checksum_ok(block, &b))
        return broken(e, "a header with a wrong checksum");
    if (number(b.size, sizeof b.size, &size) < 0)
        return broken(e, "a size that is no number");
    if (b.type == 'x' || b.type == 'g' || b.type == 'L' || b.type == 'K' || b.type == 'X')
        return meta_header(r, b.type, size, e);

    if (number(b.mode, sizeof b.mode, &mode) < 0 || number(b.uid, sizeof b.uid, &uid) < 0 ||
        number(b.gid, sizeof b.gid, &gid) < 0 || number(b.mtime, sizeof b.mtime, &mtime) < 0)
        return broken(e, "a field that is no number");

    if (r->has_size)
        size = (int64_t)r->size;
    if (size < 0 || size > TAR_SIZE_MAX)
        return broken(e, "a file larger than any disk");
    if (take_names(r, &b, e) < 0 || take_type(&r->entry, b.type, e) < 0)
        return -1;

    struct tar_entry *t = &r->entry;
    t->mode = (uint32_t)(mode & 07777);
    t->uid = (uint32_t)uid;
    t->gid = (uint32_t)gid;
    t->mtime = r->has_mtime ? r->mtime : mtime;

    /* pax lets a hard link have contents; others than files never have any, whatever the field
     * says. A directory that is called a file has. */
    int called_file = b.type == '0' || b.type == 0 || b.type == '7';
    t->size = called_file || (t->type == TAR_HARDLINK && r->has_size) ? (uint64_t)size : 0;

    r->has_path = r->has_link = r->has_size = r->has_mtime = 0;
    return TAR_ENTRY;
}

/* --- extended headers ---------------------------------------------------------------------- */

/* A name must be without NUL: what comes after one would be seen by some programs only. */
static int set_name(struct buf *to, int *has, const uint8_t *value, size_t len, struct pd_err *e)
{
    buf_clear(to);
    if (!len)
        return broken(e, "an empty name");
    if (memchr(value, 0, len))
        return broken(e, "a name with a NUL in it");
    if (buf_put(to, value, len) < 0)
        return broken(e, "a name that is too long");

    *has = 1;
    return 0;
}

/* Decimal digits, maybe signed, maybe with a fraction, which is cut off. */
static int decimal(const uint8_t *value, size_t len, int allow_fraction, int64_t *ret)
{
    size_t i = 0;
    int negative = len && value[0] == '-';
    uint64_t v = 0;

    i += (size_t)negative;
    if (i == len)
        return -1;

    for (; i < len && value[i] >= '0' && value[i] <= '9'; i++) {
        if (v > (INT64_MAX - 9) / 10)
            return -1;
        v = v * 10 + (uint64_t)(value[i] - '0');
    }

    if (i < len && allow_fraction && value[i] == '.')
        for (i++; i < len && value[i] >= '0' && value[i] <= '9';)
            i++;
    if (i != len)
        return -1;

    *ret = negative ? -(int64_t)v : (int64_t)v;
    return 0;
}

static int is_key(const uint8_t *key, size_t len, const char *name)
{
    return len == strlen(name) && !memcmp(key, name, len);
}

static int pax_record(struct tar_reader *r, const uint8_t *key, size_t key_len,
                      const uint8_t *value, size_t len, struct pd_err *e)
{
    int64_t n;

    if (is_key(key, key_len, "path"))
        return set_name(&r->path, &r->has_path, value, len, e);
    if (is_key(key, key_len, "linkpath"))
        return set_name(&r->link, &r->has_link, value, len, e);

    if (is_key(key, key_len, "size")) {
        if (decimal(value, len, 0, &n) < 0 || n < 0)
            return broken(e, "a size that is no number");
        r->size = (uint64_t)n;
        r->has_size = 1;
    } else if (is_key(key, key_len, "mtime")) {
        if (decimal(value, len, 1, &n) < 0)
            return broken(e, "a time that is no number");
        r->mtime = n;
        r->has_mtime = 1;
    } else if (key_len > 11 && !memcmp(key, "GNU.sparse.", 11)) {
        return pd_fail(e, PD_UNSUPPORTED, "the archive has sparse files; pack without --sparse");
    }

    return 0; /* owners by name, attributes, comments: nobody asked for them */
}

/* "LENGTH KEY=VALUE\n", where LENGTH counts the whole of it. */
static int pax_records(struct tar_reader *r, const uint8_t *data, size_t len, struct pd_err *e)
{
    while (len) {
        size_t digits = 0, total = 0;
        while (digits < len && digits < 8 && data[digits] >= '0' && data[digits] <= '9')
            total = total * 10 + (size_t)(data[digits++] - '0');
        if (!digits || digits == len || data[digits] != ' ' || total > len || total < digits + 3 ||
            data[total - 1] != '\n')
            return broken(e, "an extended header that cannot be read");

        const uint8_t *key = data + digits + 1, *end = data + total - 1;
        const uint8_t *equals = memchr(key, '=', (size_t)(end - key));
        if (!equals || equals == key)
            return broken(e, "an extended header without a key");
        if (pax_record(r, key, (size_t)(equals - key), equals + 1, (size_t)(end - equals - 1), e) <
            0)
            return -1;

        data += total;
        len -= total;
    }
    return 0;
}

int tar_meta(struct tar_reader *r, const uint8_t *data, size_t len, struct pd_err *e)
{
    if (len != r->meta_size)
        return broken(e, "an extended header of another length");

    if (r->meta_type == 'L' || r->meta_type == 'K') {
        /* GNU's names end with a NUL, and nothing may be behind it. */
        while (len && !data[len - 1])
            len--;
        return r->meta_type == 'L' ? set_name(&r->path, &r->has_path, data, len, e)
                                   : set_name(&r->link, &r->has_link, data, len, e);
    }

    /* A global header is for all that follow; none of what it may say is of use here. */
    return r->meta_type == 'g' ? 0 : pax_records(r, data, len, e);
}

/* --- writing ------------------------------------------------------------------------------- */

static void put_octal(char *field, size_t size, uint64_t value)
{
    for (size_t i = size - 1; i-- > 0; value >>= 3)
        field[i] = (char)('0' + (value & 7));
    field[size - 1] = 0;
}

static void put_block(struct buf *out, const struct tar_entry *t, char type, uint64_t size)
{
    struct block b;
    uint32_t sum = 0;

    memset(&b, 0, sizeof b);
    memcpy(b.name, t->path, strnlen(t->path, sizeof b.name));
    memcpy(b.link, t->link, strnlen(t->link, sizeof b.link));
    put_octal(b.mode, sizeof b.mode, t->mode & 07777);
    put_octal(b.uid, sizeof b.uid, t->uid < 1u << 21 ? t->uid : 65534);
    put_octal(b.gid, sizeof b.gid, t->gid < 1u << 21 ? t->gid : 65534);
    put_octal(b.size, sizeof b.size, size < UINT64_C(1) << 33 ? size : 0);
    put_octal(b.mtime, sizeof b.mtime,
              t->mtime >= 0 && t->mtime < INT64_C(1) << 33 ? (uint64_t)t->mtime : 0);

    b.type = type;
    memcpy(b.magic, "ustar", 6);
    memcpy(b.version, "00", 2);

    memset(b.checksum, ' ', sizeof b.checksum);
    const uint8_t *raw = (const uint8_t *)&b;
    for (size_t i = 0; i < sizeof b; i++)
        sum += raw[i];
    put_octal(b.checksum, 7, sum);
    buf_put(out, &b, sizeof b);
}

static void put_pax(struct buf *out, const char *key, const char *value)
{
    /* The length counts its own digits. */
    size_t body = strlen(key) + strlen(value) + 3, total = body, digits;
    do {
        digits = 1;
        for (size_t n = total; n >= 10; n /= 10)
            digits++;
        if (total == body + digits)
            break;
        total = body + digits;
    } while (1);

    buf_printf(out, "%zu %s=%s\n", total, key, value);
}

static void put_zeroes(struct buf *out, size_t len)
{
    static const uint8_t zeroes[TAR_BLOCK];
    for (; len > TAR_BLOCK; len -= TAR_BLOCK)
        buf_put(out, zeroes, TAR_BLOCK);
    buf_put(out, zeroes, len);
}

static char type_letter(enum tar_type type)
{
    static const char letters[] = {[TAR_FILE] = '0',     [TAR_DIR] = '5',  [TAR_SYMLINK] = '2',
                                   [TAR_HARDLINK] = '1', [TAR_FIFO] = '6', [TAR_DEVICE] = '3'};
    return letters[type];
}

void tar_write_header(struct buf *out, const struct tar_entry *t)
{
    auto_buf pax = BUF_INIT(TAR_META_MAX);
    char text[32];

    if (strlen(t->path) > sizeof((struct block *)0)->name)
        put_pax(&pax, "path", t->path);
    if (strlen(t->link) > sizeof((struct block *)0)->link)
        put_pax(&pax, "linkpath", t->link);
    if (t->size >= UINT64_C(1) << 33) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)t->size);
        put_pax(&pax, "size", text);
    }
    if (t->mtime < 0 || t->mtime >= INT64_C(1) << 33) {
        snprintf(text, sizeof text, "%lld", (long long)t->mtime);
        put_pax(&pax, "mtime", text);
    }

    if (pax.overflow) {
        out->overflow = 1;
        return;
    }

    if (pax.len) {
        struct tar_entry x = {.path = "pax-header", .link = "", .mode = 0644};
        put_block(out, &x, 'x', pax.len);
        buf_put(out, pax.data, pax.len);
        put_zeroes(out, tar_padding(pax.len));
    }

    put_block(out, t, type_letter(t->type), t->size);
}

void tar_write_end(struct buf *out)
{
    put_zeroes(out, 2 * TAR_BLOCK);
}
