/* The loops over a page that cost most, in C: fingerprint, first_near, resolve_plain, collapse, read_plain (in _page.h).
 *
 * This module is optional. Each function has a twin in Python that defines it (named at the function), and gives the
 * same result for every input or, where it says so, no answer. It calls no Python code, keeps no state, and compiles
 * against the stable ABI of CPython 3.11.
 */

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* What a byte is to the functions below; filled once by fill_tables. */
enum {
    PATH = 1,       /* stands in the path of a canonical URL as it is */
    QUERY = 2,      /* stands in the query of a canonical URL as it is */
    HOST = 4,       /* stands in a host that needs no further look */
    UNRESERVED = 8, /* RFC 3986 2.3 */
};

static uint8_t traits[256];
/* Bytes of words as the fingerprint hashes them; 0 for all that separates words. */
static uint8_t folded[256];

static int is_digit(unsigned c) { return c >= '0' && c <= '9'; }
static int is_lower(unsigned c) { return c >= 'a' && c <= 'z'; }
static int is_upper(unsigned c) { return c >= 'A' && c <= 'Z'; }

static void fill_tables(void)
{
    for (unsigned c = 0; c < 256; c++) {
        int alnum = is_digit(c) || is_lower(c) || is_upper(c);
        uint8_t found = 0;
        if (alnum || (c && c < 0x80 && strchr("-._~", (int)c)))
            found |= UNRESERVED | PATH | QUERY;
        if (c && c < 0x80 && strchr("!$&()*+,:;=@[]|", (int)c))
            found |= PATH | QUERY;
        if (c == '\'')
            found |= PATH;
        if (c == '/' || c == '?')
            found |= QUERY;
        if (is_digit(c) || is_lower(c) || c == '-' || c == '_')
            found |= HOST;
        traits[c] = found;
        folded[c] = (uint8_t)(is_upper(c) ? c + ('a' - 'A') : alnum || c > 0x7F ? c : 0);
    }
}

/* --- fingerprint: its definition is amble.formats.simhash --------------------------------------------------- */

#define WORDS_MIN 30
#define BYTES_MAX (256 * 1024)
#define SHINGLES_WANTED 384
#define MULTIPLIER UINT64_C(0xD1342543DE82EF95)
#define FIRST UINT64_C(0x9E3779B97F4A7C15)
#define SECOND UINT64_C(0xC2B2AE3D27D4EB4F)

/* BYTES_MAX words at most, one per byte, need counters of fewer bits than this. */
#define PLANES 20

static uint64_t mixed(uint64_t value)
{
    value ^= value >> 30;
    value *= UINT64_C(0xBF58476D1CE4E5B9);
    value ^= value >> 27;
    value *= UINT64_C(0x94D049BB133111EB);
    return value ^ value >> 31;
}

static int within(unsigned c, unsigned low, unsigned high) { return c >= low && c <= high; }

/* Whether three bytes are a character of a script that is written without spaces. */
static int is_unspaced(const uint8_t *at)
{
    unsigned lead = at[0], next = at[1];
    if (lead < 0xE0 || !within(next, 0x80, 0xBF) || !within(at[2], 0x80, 0xBF))
        return 0;
    switch (lead) {
    case 0xE0:
        return within(next, 0xB8, 0xBB);
    case 0xE1:
        return next == 0x80 || next == 0x81 || next == 0x9E || next == 0x9F || (next == 0x82 && at[2] <= 0x9F);
    case 0xE3:
        return within(next, 0x81, 0x83) || next >= 0x90;
    case 0xEF:
        return within(next, 0xA4, 0xAB);
    default:
        return lead >= 0xE4 && lead <= 0xE9;
    }
}

/* Writes the hashes of all words to `words`, which has room for one per byte; returns how many.
 * No branch depends on where words end, for no processor can foresee that: the hash so far is always written. */
static size_t hash_words(const uint8_t *text, size_t length, uint64_t *words)
{
    const uint8_t *at = text, *end = text + length;
    uint64_t hash = 0, power = 1;
    uint64_t inside = 0;
    size_t count = 0;
    for (; at < end; at++) {
        uint64_t byte = folded[*at];
        uint64_t word = byte != 0;
        words[count] = hash;
        if (byte >= 0xE0 && end - at >= 3 && is_unspaced(at)) {
            count += (size_t)inside;
            words[count++] = at[0] + at[1] * MULTIPLIER + at[2] * (MULTIPLIER * MULTIPLIER);
            at += 2;
            word = 0;
        } else {
            count += (size_t)(inside & ~word);
        }
        /* All ones within a word, so that both begin anew behind it. */
        uint64_t mask = 0 - word;
        hash = (hash + byte * power) & mask;
        power = ((power * MULTIPLIER - 1) & mask) + 1;
        inside = word;
    }
    if (inside)
        words[count++] = hash;
    return count;
}

/* Turns words into shingles in place; returns how many. */
static size_t make_shingles(uint64_t *words, size_t count)
{
    for (size_t i = 0; i + 2 < count; i++)
        words[i] = mixed(words[i] * FIRST + words[i + 1] * SECOND + words[i + 2]);
    return count - 2;
}

/* Moves the sample of `shingles` to `kept`; returns its size. A sample too small is no sample: all are moved. */
static size_t sample(const uint64_t *shingles, size_t count, uint64_t *kept)
{
    unsigned bits = 0;
    size_t size = 0;
    while (count > ((size_t)2 * SHINGLES_WANTED) << bits)
        bits++;
    if (bits)
        for (size_t i = 0; i < count; i++)
            if ((shingles[i] * FIRST) >> (64 - bits) == 0)
                kept[size++] = shingles[i];
    if (size < WORDS_MIN || !bits) {
        memcpy(kept, shingles, count * sizeof *kept);
        size = count;
    }
    return size;
}

/* Merge sort: its time does not depend on what an author of texts has chosen. Returns whichever array is sorted. */
static uint64_t *sorted(uint64_t *from, uint64_t *to, size_t count)
{
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t low = 0; low < count; low += 2 * width) {
            size_t middle = low + width < count ? low + width : count;
            size_t high = low + 2 * width < count ? low + 2 * width : count;
            size_t left = low, right = middle, next = low;
            while (left < middle && right < high) {
                uint64_t first = from[left], second = from[right];
                size_t is_first = first <= second;
                to[next++] = is_first ? first : second;
                left += is_first;
                right += !is_first;
            }
            memcpy(to + next, from + left, (middle - left) * sizeof *to);
            memcpy(to + next + (middle - left), from + right, (high - right) * sizeof *to);
        }
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    return from;
}

/* Bit i is set where more than half of the distinct values have it set. Plane k holds bit k of 64 counters. */
static uint64_t majority(const uint64_t *ordered, size_t count)
{
    uint64_t planes[PLANES] = {0}, result = 0;
    size_t distinct = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t carry = ordered[i];
        if (i && carry == ordered[i - 1])
            continue;
        distinct++;
        for (size_t k = 0; carry && k < PLANES; k++) {
            uint64_t both = planes[k] & carry;
            planes[k] ^= carry;
            carry = both;
        }
    }
    for (unsigned bit = 0; bit < 64; bit++) {
        size_t set = 0;
        for (size_t k = 0; k < PLANES; k++)
            set |= (size_t)(planes[k] >> bit & 1) << k;
        if (2 * set > distinct)
            result |= UINT64_C(1) << bit;
    }
    return result;
}

PyDoc_STRVAR(fingerprint_doc,
"fingerprint(utf8, /)\n--\n\n"
"The near-duplicate fingerprint of a text in UTF-8, as amble.formats.simhash defines it.");

static PyObject *fingerprint(PyObject *Py_UNUSED(module), PyObject *utf8)
{
    char *text;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(utf8, &text, &length) < 0)
        return NULL;
    if (length > BYTES_MAX)
        length = BYTES_MAX;
    if (length < WORDS_MIN)
        return PyLong_FromLong(0);
    uint64_t *words = PyMem_Malloc(2 * (size_t)length * sizeof *words);
    if (words == NULL)
        return PyErr_NoMemory();
    uint64_t *kept = words + length, result = 0;
    size_t count = hash_words((const uint8_t *)text, (size_t)length, words);
    if (count >= WORDS_MIN) {
        count = sample(words, make_shingles(words, count), kept);
        result = majority(sorted(kept, words, count), count);
    }
    PyMem_Free(words);
    return PyLong_FromUnsignedLongLong(result);
}

/* --- first_near: amble.domain.digest defines it --------------------------------------------------------------- */

static uint64_t little_endian(const uint8_t *bytes)
{
    uint64_t value = 0;
    for (int place = 7; place >= 0; place--)
        value = value << 8 | bytes[place];
    return value;
}

PyDoc_STRVAR(first_near_doc,
"first_near(pairs, fingerprint, bits_max, /)\n--\n\n"
"The number beside the first fingerprint of `pairs` that is near, as amble.domain.digest defines it.");

static PyObject *first_near(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "first_near takes pairs, a fingerprint and a number of bits");
        return NULL;
    }
    char *start;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(args[0], &start, &length) < 0)
        return NULL;
    uint64_t wanted = PyLong_AsUnsignedLongLong(args[1]);
    if (wanted == (uint64_t)-1 && PyErr_Occurred())
        return NULL;
    long bits_max = PyLong_AsLong(args[2]);
    if (bits_max == -1 && PyErr_Occurred())
        return NULL;
    const uint8_t *pair = (const uint8_t *)start, *end = pair + length / 16 * 16;
    for (; pair != end; pair += 16)
        if (__builtin_popcountll(little_endian(pair) ^ wanted) <= bits_max)
            return PyLong_FromUnsignedLongLong(little_endian(pair + 8));
    Py_RETURN_NONE;
}

/* --- resolve_plain: amble.domain.url has the whole of it ----------------------------------------------------- */

/* Longer ones are rare enough to go the long way. */
#define HREF_BYTES_MAX 2048
#define DIRECTORY_BYTES_MAX 2048
#define HOST_BYTES_MAX 200
/* A directory, and an href whose every byte is escaped; a scheme and a slash are counted by the last term. */
#define URL_BYTES_MAX (DIRECTORY_BYTES_MAX + 3 * HREF_BYTES_MAX + 16)

typedef struct {
    uint8_t text[URL_BYTES_MAX];
    size_t length;
    size_t root; /* what stands behind the first slash of the path begins here */
} Url;

/* A URL up to the last slash of its path, and where its parts end. */
typedef struct {
    const uint8_t *text;
    size_t length, scheme, origin;
} Directory;

typedef struct {
    const uint8_t *at, *end;
} Input;

static void put(Url *url, uint8_t byte)
{
    if (url->length < URL_BYTES_MAX)
        url->text[url->length++] = byte;
}

static void put_all(Url *url, const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        put(url, bytes[i]);
}

static void put_escape(Url *url, uint8_t byte)
{
    static const char digits[] = "0123456789ABCDEF";
    put(url, '%');
    put(url, (uint8_t)digits[byte >> 4]);
    put(url, (uint8_t)digits[byte & 15]);
}

static int hex_value(unsigned c)
{
    if (is_digit(c))
        return (int)(c - '0');
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? (int)(c - 'a') + 10 : -1;
}

/* Copies one escape with upper-case digits. 0 where it is none, or where it hides a character that needs none. */
static int copy_escape(Url *url, Input *in)
{
    if (in->end - in->at < 3)
        return 0;
    int high = hex_value(in->at[1]), low = hex_value(in->at[2]);
    if (high < 0 || low < 0 || traits[high << 4 | low] & UNRESERVED)
        return 0;
    put_escape(url, (uint8_t)(high << 4 | low));
    in->at += 3;
    return 1;
}

/* Removes the segment that begins at `start` where it is "." or "..", the latter with the segment before it. */
static int drop_dots(Url *url, size_t start)
{
    size_t size = url->length - start;
    if (size == 0 || size > 2 || url->text[start] != '.' || url->text[url->length - 1] != '.')
        return 0;
    url->length = start;
    if (size == 2 && start > url->root) {
        url->length--;
        while (url->length > url->root && url->text[url->length - 1] != '/')
            url->length--;
    }
    return 1;
}

/* Appends segments up to the query, the fragment or the end. 0 where a byte needs a closer look. */
static int copy_path(Url *url, Input *in)
{
    size_t start = url->length;
    while (in->at < in->end && *in->at != '?' && *in->at != '#') {
        uint8_t byte = *in->at;
        if (byte == '%') {
            if (!copy_escape(url, in))
                return 0;
            continue;
        }
        if (byte == '/') {
            if (!drop_dots(url, start))
                put(url, byte);
            start = url->length;
        } else if (traits[byte] & PATH) {
            put(url, byte);
        } else if (byte > 0x7F || byte == ' ') {
            put_escape(url, byte);
        } else {
            return 0;
        }
        in->at++;
    }
    drop_dots(url, start);
    return 1;
}

static int copy_query(Url *url, Input *in)
{
    put(url, '?');
    in->at++;
    while (in->at < in->end && *in->at != '#') {
        uint8_t byte = *in->at;
        if (byte == '%') {
            if (!copy_escape(url, in))
                return 0;
            continue;
        }
        if (traits[byte] & QUERY)
            put(url, byte);
        else if (byte == ' ')
            put_escape(url, byte);
        else
            return 0;
        in->at++;
    }
    return 1;
}

/* Copies a host of lower-case names, none of them punycode and the last not a number, and one slash. */
static int copy_host(Url *url, Input *in)
{
    const uint8_t *start = in->at, *label = in->at;
    for (; in->at < in->end && (*in->at == '.' || traits[*in->at] & HOST); in->at++) {
        if (*in->at == '.') {
            if (in->at == label)
                return 0;
            label = in->at + 1;
        } else if (in->at - label == 3 && memcmp(label, "xn--", 4) == 0) {
            return 0;
        }
    }
    if (in->at == label || !is_lower(*label) || in->at - start > HOST_BYTES_MAX)
        return 0;
    if (in->at < in->end && *in->at != '/' && *in->at != '?' && *in->at != '#')
        return 0;
    put_all(url, start, (size_t)(in->at - start));
    put(url, '/');
    url->root = url->length;
    if (in->at < in->end && *in->at == '/')
        in->at++;
    return 1;
}

static int begins_with(const Input *in, const char *text, size_t length)
{
    return (size_t)(in->end - in->at) >= length && memcmp(in->at, text, length) == 0;
}

/* Whether a colon stands in the first segment: it may end a scheme. */
static int may_have_scheme(const Input *in)
{
    for (const uint8_t *at = in->at; at < in->end && *at != '/' && *at != '?' && *at != '#'; at++)
        if (*at == ':')
            return 1;
    return 0;
}

/* Writes all of the URL that stands before its path is read. */
static int begin_url(Url *url, Input *in, const Directory *base)
{
    size_t scheme = begins_with(in, "https://", 8) ? 6 : begins_with(in, "http://", 7) ? 5 : 0;
    if (scheme || begins_with(in, "//", 2)) {
        put_all(url, scheme ? in->at : base->text, scheme ? scheme : base->scheme);
        put_all(url, (const uint8_t *)"//", 2);
        in->at += scheme + 2;
        return copy_host(url, in);
    }
    url->root = base->origin + 1;
    if (*in->at == '/') {
        put_all(url, base->text, base->origin + 1);
        in->at++;
        return 1;
    }
    if (*in->at == '?' || *in->at == '#' || may_have_scheme(in))
        return 0;
    put_all(url, base->text, base->length);
    return 1;
}

static int resolve(Url *url, Input in, const Directory *base)
{
    while (in.at < in.end && *in.at <= ' ')
        in.at++;
    while (in.at < in.end && in.end[-1] <= ' ')
        in.end--;
    if (in.at == in.end || in.end - in.at > HREF_BYTES_MAX)
        return 0;
    url->length = 0;
    if (!begin_url(url, &in, base) || !copy_path(url, &in))
        return 0;
    return in.at == in.end || *in.at != '?' || copy_query(url, &in);
}

/* Finds the parts of a directory. 0 where it is not what the caller must give. */
static int read_directory(Directory *base, const char *text, Py_ssize_t length)
{
    Input in = {(const uint8_t *)text, (const uint8_t *)text + length};
    base->text = in.at;
    base->length = (size_t)length;
    base->scheme = begins_with(&in, "https://", 8) ? 6 : begins_with(&in, "http://", 7) ? 5 : 0;
    if (!base->scheme || length > DIRECTORY_BYTES_MAX || text[length - 1] != '/')
        return 0;
    const char *slash = memchr(text + base->scheme + 2, '/', (size_t)length - base->scheme - 2);
    base->origin = slash == NULL ? 0 : (size_t)(slash - text);
    return base->origin > base->scheme + 2;
}

static PyObject *none(void)
{
    Py_INCREF(Py_None);
    return Py_None;
}

/* A new reference: a URL, or None. NULL with an error set where `href` is no str. */
static PyObject *resolved(PyObject *href, const Directory *base)
{
    Url url;
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(href, &length);
    if (text == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
            return NULL;
        PyErr_Clear(); /* a lone surrogate */
        return none();
    }
    Input in = {(const uint8_t *)text, (const uint8_t *)text + length};
    if (!resolve(&url, in, base))
        return none();
    return PyUnicode_FromStringAndSize((const char *)url.text, (Py_ssize_t)url.length);
}

PyDoc_STRVAR(resolve_plain_doc,
"resolve_plain(hrefs, directory, /)\n--\n\n"
"Each of a list of hrefs resolved against `directory`, a canonical URL that ends in a slash: without its fragment and\n"
"with its escapes in normal form, its query whole. None for each that is not plain.");

static PyObject *resolve_plain(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *hrefs;
    const char *text;
    Py_ssize_t length;
    Directory base;
    if (!PyArg_ParseTuple(arguments, "Os#:resolve_plain", &hrefs, &text, &length))
        return NULL;
    Py_ssize_t count = PyList_Size(hrefs);
    if (count < 0)
        return NULL;
    int known = read_directory(&base, text, length);
    PyObject *urls = PyList_New(count);
    for (Py_ssize_t i = 0; urls != NULL && i < count; i++) {
        PyObject *href = PyList_GetItem(hrefs, i); /* borrowed, and checked against the list as it is now */
        PyObject *url = href == NULL ? NULL : known ? resolved(href, &base) : none();
        if (url == NULL || PyList_SetItem(urls, i, url) < 0) {
            Py_DECREF(urls);
            return NULL;
        }
    }
    return urls;
}

/* --- collapse: amble.formats.space has its twin ---------------------------------------------------------- */

#define COLLAPSED_ON_STACK 1024

/* The bytes of the white space at `at`, by the definition of str.isspace; 0 where there is none. */
static size_t space_size(const uint8_t *at, size_t left)
{
    unsigned c = at[0];
    if (c < 0x80)
        return c == ' ' || within(c, 0x09, 0x0D) || within(c, 0x1C, 0x1F);
    if (c == 0xC2)
        return left >= 2 && (at[1] == 0x85 || at[1] == 0xA0) ? 2 : 0;
    if (c < 0xE1 || c > 0xE3 || left < 3)
        return 0;
    unsigned code = (c & 15) << 12 | (at[1] & 63U) << 6 | (at[2] & 63U);
    return code == 0x1680 || within(code, 0x2000, 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F
            || code == 0x205F || code == 0x3000 ? 3 : 0;
}

/* Writes `text` with its runs of white space as single spaces, none at its ends; returns the bytes written.
 * `room` is at least the length of the text, or four bytes for each of `chars_max`. */
static size_t collapse_into(uint8_t *out, size_t room, const uint8_t *text, size_t length, size_t chars_max)
{
    size_t written = 0, chars = 0, at = 0;
    int pending = 0;
    while (at < length) {
        size_t space = space_size(text + at, length - at);
        if (space) {
            pending = written > 0;
            at += space;
            continue;
        }
        if (pending && chars < chars_max && written < room) {
            out[written++] = ' ';
            chars++;
        }
        pending = 0;
        if (chars == chars_max)
            break;
        chars++;
        do
            if (written < room)
                out[written++] = text[at];
        while (++at < length && (text[at] & 0xC0) == 0x80);
    }
    return written;
}

/* The twin's own words, for text that has no UTF-8. */
static PyObject *collapse_surrogates(PyObject *whole, Py_ssize_t chars_max)
{
    PyObject *result = NULL, *words = PyUnicode_Split(whole, NULL, -1), *space = PyUnicode_FromString(" ");
    PyObject *joined = words != NULL && space != NULL ? PyUnicode_Join(space, words) : NULL;
    if (joined != NULL)
        result = PyUnicode_Substring(joined, 0, chars_max);
    Py_XDECREF(words);
    Py_XDECREF(space);
    Py_XDECREF(joined);
    return result;
}

PyDoc_STRVAR(collapse_doc,
"collapse(text, chars_max, /)\n--\n\n"
"`text` with every run of white space as one space, none at its ends, and at most `chars_max` characters of that.");

static PyObject *collapse(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count)
{
    uint8_t stack[COLLAPSED_ON_STACK], *out = stack;
    if (count != 2 || !PyUnicode_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "collapse takes a str and an int");
        return NULL;
    }
    PyObject *whole = arguments[0];
    Py_ssize_t length, chars_max = PyLong_AsSsize_t(arguments[1]);
    if (chars_max == -1 && PyErr_Occurred())
        return NULL;
    if (chars_max < 0)
        chars_max = 0;
    const char *text = PyUnicode_AsUTF8AndSize(whole, &length);
    if (text == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
            return NULL;
        PyErr_Clear();
        return collapse_surrogates(whole, chars_max);
    }
    size_t room = (size_t)length;
    if ((size_t)chars_max < room / 4)
        room = 4 * (size_t)chars_max;
    if (room > sizeof stack) {
        out = PyMem_Malloc(room);
        if (out == NULL)
            return PyErr_NoMemory();
    }
    size_t written = collapse_into(out, room, (const uint8_t *)text, (size_t)length, (size_t)chars_max);
    PyObject *result;
    if (written == (size_t)length && memcmp(out, text, written) == 0) {
        Py_INCREF(whole);
        result = whole;
    } else {
        result = PyUnicode_FromStringAndSize((const char *)out, (Py_ssize_t)written);
    }
    if (out != stack)
        PyMem_Free(out);
    return result;
}

#include "_page.h"

/* --- the module ----------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"fingerprint", fingerprint, METH_O, fingerprint_doc},
    {"first_near", (PyCFunction)(void (*)(void))first_near, METH_FASTCALL, first_near_doc},
    {"resolve_plain", resolve_plain, METH_VARARGS, resolve_plain_doc},
    {"collapse", (PyCFunction)(void (*)(void))collapse, METH_FASTCALL, collapse_doc},
    {"read_plain", (PyCFunction)(void (*)(void))read_plain, METH_FASTCALL, read_plain_doc},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *Py_UNUSED(module))
{
    fill_tables();
    fill_classes();
    fill_element_slots();
    fill_hints();
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
    {0, NULL},
};

static PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "amble._native",
    .m_doc = "The loops over a page that cost most, in C. Optional: each has a twin in Python.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
