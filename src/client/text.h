/* client_text: foreign bytes on somebody's terminal.
 *
 * What a sandbox prints is hostile to a terminal: it can set the title, write to the clipboard, ask
 * the terminal to type, hide text. Pure functions. */
#pragma once

#include "base/buf.h"

/* For tables and messages: everything that is not a printable character becomes \xNN or \u{NNNN},
 * also control characters of Unicode and those that turn the direction of text. */
void text_escape(struct buf *out, const void *text, size_t len);
/* How many characters the text is wide, counting each code point as one. */
size_t text_width(const void *text, size_t len);

/* For streams: passes lines, tabs, colours (SGR), carriage return and backspace; the rest of the
 * control characters are shown as ^X. Keeps its state between pieces, so that a sequence or a
 * character may be split. Start with a zeroed struct. */
struct text_filter {
    unsigned char held[32]; /* the beginning of a sequence or character */
    unsigned count;
};
void text_filter(struct text_filter *f, struct buf *out, const void *data, size_t len);
/* Writes the bytes that are still held: the stream is over. */
void text_filter_end(struct text_filter *f, struct buf *out);
