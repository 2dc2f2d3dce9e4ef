/* Entries of directories as E2B's filesystem service shows them. The numbers of the file's record
 * become the texts of the protocol: a mode such as "drwxr-xr-x", written as Go writes it; a time in
 * RFC 3339 with nanoseconds; the names of the two users that a sandbox has. Of a symbolic link,
 * type and mode are those of the file at its end. */
#include "api/e2b_entry.h"

#include "base/banned.h"
#include "base/json.h"

#include <time.h>

#define UID_ROOT 0u
#define UID_USER 1000u
#define NS       1000000000

void e2b_permissions(uint32_t type, uint32_t mode, char out[E2B_PERMISSIONS_SIZE])
{
    static const char letters[ENTRY_TYPE_COUNT] = {[ENTRY_DIR] = 'd',
                                                   [ENTRY_SYMLINK] = 'L',
                                                   [ENTRY_FIFO] = 'p',
                                                   [ENTRY_SOCKET] = 'S',
                                                   [ENTRY_DEVICE] = 'D'};
    static const char rwx[] = "rwxrwxrwx";
    char *p = out;

    if (type < ENTRY_TYPE_COUNT && letters[type])
        *p++ = letters[type];
    if (mode & 04000)
        *p++ = 'u';
    if (mode & 02000)
        *p++ = 'g';
    if (mode & 01000)
        *p++ = 't';
    if (p == out)
        *p++ = '-';

    for (unsigned i = 0; i < 9; i++)
        *p++ = mode & (0400u >> i) ? rwx[i] : '-';
    *p = 0;
}

void e2b_time(int64_t ns, char out[E2B_TIME_SIZE])
{
    int64_t rest = ns % NS;
    time_t seconds = (time_t)(ns / NS);
    struct tm tm;

    if (rest < 0) {
        rest += NS;
        seconds--;
    }

    /* 64 bits of nanoseconds end in 1677 and in 2262: gmtime knows them all. */
    if (!gmtime_r(&seconds, &tm))
        memset(&tm, 0, sizeof tm);
    snprintf(out, E2B_TIME_SIZE, "%04d-%02d-%02dT%02d:%02d:%02d.%09dZ", tm.tm_year + 1900,
             tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int)rest);
}

static void member_name(struct json *j, const char *key, uint32_t id)
{
    char number[16];
    snprintf(number, sizeof number, "%u", id);
    json_member_cstr(j, key, id == UID_ROOT ? "root" : id == UID_USER ? "user" : number);
}

/* Only if there is any. */
static void member_metadata(struct json *j, const struct record_detail *d)
{
    const char *name, *value;
    uint32_t pos = 0;

    if (!d->attrs_len)
        return;

    json_key(j, "metadata");
    json_open(j, '{');
    while (record_attr_next(d, &pos, &name, &value)) {
        json_key(j, name);
        json_cstr(j, value);
    }
    json_close(j, '}');
}

void e2b_entry_json(struct json *j, const struct record_detail *d)
{
    const struct record_entry *r = &d->entry;
    const char *slash = strrchr(r->path, '/');
    char text[E2B_TIME_SIZE], permissions[E2B_PERMISSIONS_SIZE];

    json_open(j, '{');
    json_member_cstr(j, "name", slash && slash[1] ? slash + 1 : r->path);
    if (d->end_type == ENTRY_FILE || d->end_type == ENTRY_DIR)
        json_member_cstr(j, "type",
                         d->end_type == ENTRY_DIR ? "FILE_TYPE_DIRECTORY" : "FILE_TYPE_FILE");
    json_member_cstr(j, "path", r->path);
    snprintf(text, sizeof text, "%llu", (unsigned long long)r->size);
    json_member_cstr(j, "size", text);
    json_member_uint(j, "mode", d->end_mode & 0777);

    e2b_permissions(r->type, r->mode, permissions);
    json_member_cstr(j, "permissions", permissions);
    member_name(j, "owner", r->uid);
    member_name(j, "group", r->gid);
    e2b_time(r->mtime_ns, text);
    json_member_cstr(j, "modifiedTime", text);

    if (r->type == ENTRY_SYMLINK)
        json_member_cstr(j, "symlinkTarget", d->end_path[0] ? d->end_path : r->target);
    member_metadata(j, d);
    json_close(j, '}');
}
