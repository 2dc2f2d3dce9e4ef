/* Any bytes as the output of a command that a shadow repeats.
 *
 * Properties: a result is the same as itself; normalising what was normalised changes nothing; an
 * output never grows beyond what is kept for it, and another exit code or another tree of files is
 * always seen. */
#include "base/buf.h"
#include "router/parity.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_again(const struct parity_output *o, bool is_err)
{
    auto_buf once = BUF_INIT(4 * PARITY_OUTPUT_MAX), twice = BUF_INIT(4 * PARITY_OUTPUT_MAX);

    parity_normalise(o, "/w/x", "/w/home", is_err, &once);
    require(!once.overflow && once.len <= 2 * o->len + 4);
    struct parity_output again = {(const char *)once.data, once.len, once.len};
    if (is_err || !once.len) /* "sh: sh: x" is a shell's complaint twice */
        return;
    parity_normalise(&again, "/w/x", "/w/home", is_err, &twice);
    require(once.len == twice.len && !memcmp(once.data, twice.data, once.len));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > PARITY_OUTPUT_MAX)
        return 0;

    size_t half = data[0] % size;
    const char *text = (const char *)data;
    struct parity_result a = {
        .output = {{text, half, half}, {text + half, size - half, size - half}},
        .workspace = "/w/x",
        .home = "/w/home"};
    struct parity_result b = a;
    require(parity_compare(&a, &b) == PARITY_UNSEEN);
    a.has_tree = b.has_tree = true;
    require(parity_compare(&a, &b) == 0);
    b.exit_code = 1;
    require(parity_compare(&a, &b) == PARITY_EXIT);
    b.tree[size % PARITY_TREE_SIZE] ^= 1;
    require(parity_compare(&a, &b) == (PARITY_EXIT | PARITY_FILES));
    check_again(&a.output[0], false);
    check_again(&a.output[1], true);
    return 0;
}
