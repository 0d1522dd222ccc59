/* Pages that need no tree builder: what a reader of HTML must know of them, in one pass over their bytes.
 *
 * Most pages close what they open, in order. Such a page has one possible tree, which its tags spell out. This file
 * reads those and no others: wherever the HTML Standard would have the parser repair, move, reopen or imply something
 * beyond the simplest, it gives no answer and the caller asks the full parser. What it answers is what
 * amble.formats.html finds in the full parser's tree, letter for letter; the tests hold one against the other.
 *
 * Everything is bounded by the length of the page, or by the bounds below.
 */

#define DEPTH_MAX 160
/* Larger pages are the full parser's, whatever they are like. */
#define PAGE_BYTES_MAX (4 * 1024 * 1024)
#define NODES_MAX (256 * 1024)
/* Attributes of nobody are read and forgotten. */
#define NOBODY NODES_MAX
#define ATTRIBUTE_DIGITS_MAX 9
#define CELLS_MAX 65536
/* Indentation and padding may make a text longer than its page, but not much. */
#define TEXT_GROWTH 4

/* --- bytes ------------------------------------------------------------------------------------------------------- */

enum {
    BLANK = 1,         /* white space */
    ENDS_NAME = 2,     /* ends the name of an attribute */
    SPOILS_NAME = 4,   /* makes it one for the full parser */
    ENDS_VALUE = 8,    /* ends a value without quotes */
    SPOILS_VALUE = 16, /* makes it one for the full parser */
};

static uint8_t classes[256];
static uint8_t lowered[256];

static void class_bytes(const char *bytes, uint8_t class)
{
    for (; *bytes; bytes++)
        classes[(uint8_t)*bytes] |= class;
}

static void fill_classes(void)
{
    memset(classes, 0, sizeof classes);
    for (unsigned c = 0; c < 256; c++)
        lowered[c] = (uint8_t)(is_upper(c) ? c | 0x20 : c);
    class_bytes(" \t\n\f\r", BLANK | ENDS_NAME | ENDS_VALUE);
    class_bytes("/=", ENDS_NAME);
    class_bytes(">", ENDS_NAME | ENDS_VALUE);
    class_bytes("\"'<", SPOILS_NAME);
    class_bytes("\"'<=`", SPOILS_VALUE);
}

static int is_blank(uint8_t c) { return classes[c] & BLANK; }

/* --- elements ------------------------------------------------------------------------------------------------ */

enum {
    VOID = 1,         /* has no content and no end tag */
    BLOCK = 2,        /* stands on lines of its own */
    CLOSES_P = 4,     /* ends a paragraph that is open */
    SPECIAL = 8,      /* the Standard's category */
    RAW = 16,         /* its content is text without references */
    ESCAPABLE = 32,   /* its content is text with references */
    REFUSED = 64,     /* the full parser's business */
    HIDDEN = 128,     /* its text is not visible */
    HEADLIKE = 256,   /* belongs into a head */
    HEADING = 512,
    HARD = 1024,      /* never holds main content */
    LANDMARK = 2048,  /* holds none at the first try */
    WALKED = 4096,    /* amble.formats.html looks at it */
    TABLED = 8192,    /* a part of tables */
    LENIENT_END = 16384, /* its end tag may close what is implied to end */
    ONCE = 32768,     /* may not stand within its like */
    LISTING = 65536,  /* a line feed behind its start tag does not count */
    SELECTED = 131072, /* stands in a select */
};

#define ELEMENTS(T) \
    T(NONE, "", REFUSED) \
    T(OTHER, "", 0) \
    T(A, "a", WALKED | ONCE) \
    T(ADDRESS, "address", BLOCK | CLOSES_P | SPECIAL | LENIENT_END) \
    T(APPLET, "applet", REFUSED) \
    T(AREA, "area", VOID | SPECIAL | WALKED) \
    T(ARTICLE, "article", BLOCK | CLOSES_P | SPECIAL | LENIENT_END) \
    T(ASIDE, "aside", BLOCK | CLOSES_P | SPECIAL | LENIENT_END | LANDMARK) \
    T(BASE, "base", VOID | SPECIAL | HEADLIKE | WALKED) \
    T(BASEFONT, "basefont", REFUSED) \
    T(BGSOUND, "bgsound", REFUSED) \
    T(BLOCKQUOTE, "blockquote", BLOCK | CLOSES_P | SPECIAL | LENIENT_END) \
    T(BODY, "body", BLOCK | SPECIAL | WALKED) \
    T(BR, "br", VOID | SPECIAL) \
    T(BUTTON, "button", SPECIAL | ONCE | HARD | LENIENT_END) \
    T(CAPTION, "caption", SPECIAL | TABLED) \
    T(CENTER, "center", CLOSES_P | SPECIAL | LENIENT_END) \
    T(COL, "col", SPECIAL | TABLED) \
    T(COLGROUP, "colgroup", SPECIAL | TABLED) \
    T(DATALIST, "datalist", REFUSED) \
    T(DD, "dd", BLOCK | SPECIAL | LENIENT_END) \
    T(DETAILS, "details", BLOCK | CLOSES_P | SPECIAL | LENIENT_END) \
    T(DIALOG, "dialog", CLOSES_P | SPECIAL | LENIENT_END | HARD) \
    T(DIR, "dir", CLOSES_P | SPECIAL | LENIENT_END) \
    T(DIV, "div", BLOCK | CLOSES_P | SPECIAL | LENIENT_END) \
    T(DL, "dl", BLOCK | CLOSES_P | SPECIAL | LENIENT_END) \
    T(DT, "dt", BLOCK | SPECIAL | LENIENT_END) \
    T(EMBED, "embed", VOID | SPECIAL) \
    T(FIELDSET, "fieldset", CLOSES_P | SPECIAL | LENIENT_END) \
    T(FIGCAPTION, "figcaption", BLOCK | CLOSES_P | SPECIAL | LENIENT_END) \
    T(FIGURE, "figure", BLOCK | CLOSES_P | SPECIAL | LENIENT_END) \
    T(FOOTER, "footer", BLOCK | CLOSES_P | SPECIAL | LENIENT_END | LANDMARK) \
    T(FORM, "form", CLOSES_P | SPECIAL | ONCE) \
    T(FRAME, "frame", REFUSED) \
    T(FRAMESET, "frameset", REFUSED) \
    T(H1, "h1", BLOCK | CLOSES_P | SPECIAL | HEADING) \
    T(H2, "h2", BLOCK | CLOSES_P | SPECIAL | HEADING) \
    T(H3, "h3", BLOCK | CLOSES_P | SPECIAL | HEADING) \
    T(H4, "h4", BLOCK | CLOSES_P | SPECIAL | HEADING) \
    T(H5, "h5", BLOCK | CLOSES_P | SPECIAL | HEADING) \
    T(H6, "h6", BLOCK | CLOSES_P | SPECIAL | HEADING) \
    T(HEAD, "head", SPECIAL | HIDDEN) \
    T(HEADER, "header", BLOCK | CLOSES_P | SPECIAL | LENIENT_END | LANDMARK) \
    T(HGROUP, "hgroup", CLOSES_P | SPECIAL | LENIENT_END) \
    T(HR, "hr", VOID | BLOCK | CLOSES_P | SPECIAL) \
    T(HTML, "html", BLOCK | SPECIAL) \
    T(IFRAME, "iframe", SPECIAL | RAW | WALKED) \
    T(IMAGE, "image", REFUSED) \
    T(IMG, "img", VOID | SPECIAL | WALKED) \
    T(INPUT, "input", VOID | SPECIAL) \
    T(ISINDEX, "isindex", REFUSED) \
    T(KEYGEN, "keygen", REFUSED) \
    T(LI, "li", BLOCK | SPECIAL | LENIENT_END) \
    T(LINK, "link", VOID | SPECIAL | HEADLIKE | WALKED) \
    T(TEXTLISTING, "listing", REFUSED) \
    T(MAIN, "main", BLOCK | CLOSES_P | SPECIAL | LENIENT_END) \
    T(MARQUEE, "marquee", REFUSED) \
    T(MATH, "math", REFUSED) \
    T(MENU, "menu", BLOCK | CLOSES_P | SPECIAL | LENIENT_END | HARD) \
    T(META, "meta", VOID | SPECIAL | HEADLIKE | WALKED) \
    T(NAV, "nav", BLOCK | CLOSES_P | SPECIAL | LENIENT_END | LANDMARK) \
    T(NOBR, "nobr", ONCE) \
    T(NOEMBED, "noembed", REFUSED) \
    T(NOFRAMES, "noframes", REFUSED) \
    T(NOSCRIPT, "noscript", HARD | SPECIAL) \
    T(OBJECT, "object", REFUSED) \
    T(OL, "ol", BLOCK | CLOSES_P | SPECIAL | LENIENT_END) \
    T(OPTGROUP, "optgroup", SELECTED) \
    T(OPTION, "option", SELECTED) \
    T(P, "p", BLOCK | CLOSES_P | SPECIAL) \
    T(PARAM, "param", VOID | SPECIAL) \
    T(PLAINTEXT, "plaintext", REFUSED) \
    T(PRE, "pre", BLOCK | CLOSES_P | SPECIAL | LENIENT_END | LISTING) \
    T(RB, "rb", REFUSED) \
    T(RP, "rp", REFUSED) \
    T(RT, "rt", REFUSED) \
    T(RTC, "rtc", REFUSED) \
    T(SCRIPT, "script", SPECIAL | RAW | HIDDEN | HARD | HEADLIKE) \
    T(SEARCH, "search", CLOSES_P | SPECIAL | LENIENT_END) \
    T(SECTION, "section", BLOCK | CLOSES_P | SPECIAL | LENIENT_END) \
    T(SELECT, "select", SPECIAL | HARD | ONCE) \
    T(SELECTEDCONTENT, "selectedcontent", REFUSED) \
    T(SOURCE, "source", VOID | SPECIAL) \
    T(STYLE, "style", SPECIAL | RAW | HIDDEN | HARD | HEADLIKE) \
    T(SUMMARY, "summary", BLOCK | CLOSES_P | SPECIAL | LENIENT_END) \
    T(SVG, "svg", HARD | ONCE) \
    T(TABLE, "table", BLOCK | CLOSES_P | SPECIAL) \
    T(TBODY, "tbody", SPECIAL | TABLED) \
    T(TD, "td", SPECIAL | TABLED) \
    T(TEMPLATE, "template", REFUSED) \
    T(TEXTAREA, "textarea", SPECIAL | ESCAPABLE | HARD | LISTING) \
    T(TFOOT, "tfoot", SPECIAL | TABLED) \
    T(TH, "th", SPECIAL | TABLED) \
    T(THEAD, "thead", SPECIAL | TABLED) \
    T(TITLE, "title", SPECIAL | ESCAPABLE | HEADLIKE | HIDDEN | WALKED) \
    T(TR, "tr", SPECIAL | TABLED) \
    T(TRACK, "track", VOID | SPECIAL) \
    T(UL, "ul", BLOCK | CLOSES_P | SPECIAL | LENIENT_END) \
    T(WBR, "wbr", VOID | SPECIAL) \
    T(XMP, "xmp", REFUSED)

#define AS_NAME(name, text, own) E_##name,
enum element { ELEMENTS(AS_NAME) ELEMENT_COUNT };
#undef AS_NAME

typedef struct {
    const char *name;
    size_t length;
    uint32_t traits;
} Element;

#define AS_ROW(name, text, own) {text, sizeof text - 1, own},
static const Element elements[ELEMENT_COUNT] = {ELEMENTS(AS_ROW)};
#undef AS_ROW

enum attribute {
    AT_CLASS, AT_ID, AT_HREF, AT_REL, AT_SRC, AT_NAME, AT_CONTENT, AT_HTTP_EQUIV, AT_TYPE, AT_LANG, AT_START, AT_VALUE,
    ATTRIBUTE_COUNT,
};

static const struct {
    const char *name;
    size_t length;
} attribute_names[ATTRIBUTE_COUNT] = {
    {"class", 5}, {"id", 2}, {"href", 4}, {"rel", 3}, {"src", 3}, {"name", 4}, {"content", 7}, {"http-equiv", 10},
    {"type", 4}, {"lang", 4}, {"start", 5}, {"value", 5},
};

#define NAMES_SLOTS 512
static uint8_t element_slots[NAMES_SLOTS];

static unsigned name_slot(const uint8_t *name, size_t length)
{
    unsigned hash = (unsigned)length;
    for (size_t i = 0; i < length; i++)
        hash = hash * 31 + (name[i] | 0x20);
    return (hash ^ hash >> 9) % NAMES_SLOTS;
}

/* Whether `name` is `known`, which is in lower case. */
static int same_name(const uint8_t *name, const char *known, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (lowered[name[i]] != (uint8_t)known[i])
            return 0;
    return 1;
}

static void fill_element_slots(void)
{
    memset(element_slots, 0, sizeof element_slots);
    for (unsigned e = E_OTHER + 1; e < ELEMENT_COUNT; e++) {
        unsigned slot = name_slot((const uint8_t *)elements[e].name, elements[e].length);
        while (element_slots[slot])
            slot = (slot + 1) % NAMES_SLOTS;
        element_slots[slot] = (uint8_t)e;
    }
}

static enum element element_named(const uint8_t *name, size_t length)
{
    for (unsigned slot = name_slot(name, length); element_slots[slot]; slot = (slot + 1) % NAMES_SLOTS) {
        const Element *known = &elements[element_slots[slot]];
        if (known->length == length && same_name(name, known->name, length))
            return (enum element)element_slots[slot];
    }
    return E_OTHER;
}

static const struct {
    const char *name;
    uint16_t point;
} references[] = {
    {"AElig", 198}, {"Aacute", 193}, {"Acirc", 194}, {"Agrave", 192}, {"Alpha", 913}, {"Aring", 197}, {"Atilde", 195},
    {"Auml", 196}, {"Beta", 914}, {"Ccedil", 199}, {"Chi", 935}, {"Dagger", 8225}, {"Delta", 916}, {"ETH", 208},
    {"Eacute", 201}, {"Ecirc", 202}, {"Egrave", 200}, {"Epsilon", 917}, {"Eta", 919}, {"Euml", 203}, {"Gamma", 915},
    {"Iacute", 205}, {"Icirc", 206}, {"Igrave", 204}, {"Iota", 921}, {"Iuml", 207}, {"Kappa", 922}, {"Lambda", 923},
    {"Mu", 924}, {"Ntilde", 209}, {"Nu", 925}, {"OElig", 338}, {"Oacute", 211}, {"Ocirc", 212}, {"Ograve", 210},
    {"Omega", 937}, {"Omicron", 927}, {"Oslash", 216}, {"Otilde", 213}, {"Ouml", 214}, {"Phi", 934}, {"Pi", 928},
    {"Prime", 8243}, {"Psi", 936}, {"Rho", 929}, {"Scaron", 352}, {"Sigma", 931}, {"THORN", 222}, {"Tau", 932},
    {"Theta", 920}, {"Uacute", 218}, {"Ucirc", 219}, {"Ugrave", 217}, {"Upsilon", 933}, {"Uuml", 220}, {"Xi", 926},
    {"Yacute", 221}, {"Yuml", 376}, {"Zeta", 918}, {"aacute", 225}, {"acirc", 226}, {"acute", 180}, {"aelig", 230},
    {"agrave", 224}, {"alefsym", 8501}, {"alpha", 945}, {"amp", 38}, {"and", 8743}, {"ang", 8736}, {"apos", 39},
    {"aring", 229}, {"asymp", 8776}, {"atilde", 227}, {"auml", 228}, {"bdquo", 8222}, {"beta", 946}, {"brvbar", 166},
    {"bull", 8226}, {"cap", 8745}, {"ccedil", 231}, {"cedil", 184}, {"cent", 162}, {"chi", 967}, {"circ", 710},
    {"clubs", 9827}, {"cong", 8773}, {"copy", 169}, {"crarr", 8629}, {"cup", 8746}, {"curren", 164}, {"dArr", 8659},
    {"dagger", 8224}, {"darr", 8595}, {"deg", 176}, {"delta", 948}, {"diams", 9830}, {"divide", 247}, {"eacute", 233},
    {"ecirc", 234}, {"egrave", 232}, {"empty", 8709}, {"emsp", 8195}, {"ensp", 8194}, {"epsilon", 949},
    {"equiv", 8801}, {"eta", 951}, {"eth", 240}, {"euml", 235}, {"euro", 8364}, {"exist", 8707}, {"fnof", 402},
    {"forall", 8704}, {"frac12", 189}, {"frac14", 188}, {"frac34", 190}, {"frasl", 8260}, {"gamma", 947},
    {"ge", 8805}, {"gt", 62}, {"hArr", 8660}, {"harr", 8596}, {"hearts", 9829}, {"hellip", 8230}, {"iacute", 237},
    {"icirc", 238}, {"iexcl", 161}, {"igrave", 236}, {"image", 8465}, {"infin", 8734}, {"int", 8747}, {"iota", 953},
    {"iquest", 191}, {"isin", 8712}, {"iuml", 239}, {"kappa", 954}, {"lArr", 8656}, {"lambda", 955}, {"lang", 10216},
    {"laquo", 171}, {"larr", 8592}, {"lceil", 8968}, {"ldquo", 8220}, {"le", 8804}, {"lfloor", 8970},
    {"lowast", 8727}, {"loz", 9674}, {"lrm", 8206}, {"lsaquo", 8249}, {"lsquo", 8216}, {"lt", 60}, {"macr", 175},
    {"mdash", 8212}, {"micro", 181}, {"middot", 183}, {"minus", 8722}, {"mu", 956}, {"nabla", 8711}, {"nbsp", 160},
    {"ndash", 8211}, {"ne", 8800}, {"ni", 8715}, {"not", 172}, {"notin", 8713}, {"nsub", 8836}, {"ntilde", 241},
    {"nu", 957}, {"oacute", 243}, {"ocirc", 244}, {"oelig", 339}, {"ograve", 242}, {"oline", 8254}, {"omega", 969},
    {"omicron", 959}, {"oplus", 8853}, {"or", 8744}, {"ordf", 170}, {"ordm", 186}, {"oslash", 248}, {"otilde", 245},
    {"otimes", 8855}, {"ouml", 246}, {"para", 182}, {"part", 8706}, {"permil", 8240}, {"perp", 8869}, {"phi", 966},
    {"pi", 960}, {"piv", 982}, {"plusmn", 177}, {"pound", 163}, {"prime", 8242}, {"prod", 8719}, {"prop", 8733},
    {"psi", 968}, {"quot", 34}, {"rArr", 8658}, {"radic", 8730}, {"rang", 10217}, {"raquo", 187}, {"rarr", 8594},
    {"rceil", 8969}, {"rdquo", 8221}, {"real", 8476}, {"reg", 174}, {"rfloor", 8971}, {"rho", 961}, {"rlm", 8207},
    {"rsaquo", 8250}, {"rsquo", 8217}, {"sbquo", 8218}, {"scaron", 353}, {"sdot", 8901}, {"sect", 167}, {"shy", 173},
    {"sigma", 963}, {"sigmaf", 962}, {"sim", 8764}, {"spades", 9824}, {"sub", 8834}, {"sube", 8838}, {"sum", 8721},
    {"sup", 8835}, {"sup1", 185}, {"sup2", 178}, {"sup3", 179}, {"supe", 8839}, {"szlig", 223}, {"tau", 964},
    {"there4", 8756}, {"theta", 952}, {"thetasym", 977}, {"thinsp", 8201}, {"thorn", 254}, {"tilde", 732},
    {"times", 215}, {"trade", 8482}, {"uArr", 8657}, {"uacute", 250}, {"uarr", 8593}, {"ucirc", 251}, {"ugrave", 249},
    {"uml", 168}, {"upsih", 978}, {"upsilon", 965}, {"uuml", 252}, {"weierp", 8472}, {"xi", 958}, {"yacute", 253},
    {"yen", 165}, {"yuml", 255}, {"zeta", 950}, {"zwj", 8205}, {"zwnj", 8204},
};

/* --- the tree: nodes in document order, so that a subtree is a run of them -------------------------------------- */

typedef struct {
    const uint8_t *text; /* NULL: not there */
    uint32_t length;
} Span;

typedef struct {
    Span text;              /* of a text */
    uint32_t chars, commas; /* of a text */
    int32_t parent;         /* -1: the document */
    int32_t end;            /* behind the last node of its subtree */
    int32_t attributes;     /* where those of an element begin; they end where the next element's begin */
    int32_t candidate;      /* 1 + its place among the candidates for main content; 0: none */
    uint32_t chars_before, links_before, commas_before;
    uint8_t element;        /* E_NONE: a text */
    uint8_t hints;
} Node;

typedef struct {
    Span value;
    uint8_t name;
} Attribute;

enum place { BEFORE_HTML, BEFORE_HEAD, IN_HEAD, IN_HEAD_NOSCRIPT, AFTER_HEAD, IN_BODY, AFTER_BODY, AFTER_HTML };

typedef struct {
    const uint8_t *at, *end, *begin;
    Node *nodes;
    size_t count, room;
    Attribute *attributes;
    size_t attribute_count, attribute_room;
    uint8_t *decoded; /* texts whose references are resolved; as long as the page, which is always enough */
    size_t decoded_length;
    int32_t open[DEPTH_MAX];
    size_t depth;
    unsigned open_count[ELEMENT_COUNT];
    enum place place;
    int has_doctype;
    int is_standard; /* not in quirks mode for certain */
    int closes_itself; /* the tag read last ended with "/>" */
} Page;

/* All functions that return int return 0 where the page is not plain, or where memory is short. */

static int add_node(Page *page, enum element element)
{
    if (page->count == page->room) {
        size_t room = page->room ? 2 * page->room : 1024;
        Node *nodes = room > NODES_MAX ? NULL : PyMem_Realloc(page->nodes, room * sizeof *nodes);
        if (nodes == NULL)
            return 0;
        page->nodes = nodes;
        page->room = room;
    }
    Node *node = &page->nodes[page->count];
    node->text = (Span){NULL, 0};
    node->chars = node->commas = 0;
    node->parent = page->depth ? page->open[page->depth - 1] : -1;
    node->end = (int32_t)page->count + 1;
    node->attributes = (int32_t)page->attribute_count;
    node->candidate = 0;
    node->element = (uint8_t)element;
    node->hints = 0;
    page->count++;
    return 1;
}

static enum element top_of(const Page *page)
{
    return page->depth ? (enum element)page->nodes[page->open[page->depth - 1]].element : E_NONE;
}

static int push_element(Page *page, enum element element)
{
    if (page->depth == DEPTH_MAX || !add_node(page, element))
        return 0;
    page->open[page->depth++] = (int32_t)page->count - 1;
    page->open_count[element]++;
    return 1;
}

static void pop_element(Page *page)
{
    Node *node = &page->nodes[page->open[--page->depth]];
    page->open_count[node->element]--;
    node->end = (int32_t)page->count;
}

static int put_point(Page *page, uint32_t point)
{
    uint8_t *out = page->decoded + page->decoded_length;
    size_t length = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    if (length == 1) {
        out[0] = (uint8_t)point;
    } else {
        for (size_t i = length - 1; i > 0; i--, point >>= 6)
            out[i] = (uint8_t)(0x80 | (point & 0x3F));
        out[0] = (uint8_t)((length == 2 ? 0xC0 : length == 3 ? 0xE0 : 0xF0) | point);
    }
    page->decoded_length += length;
    return 1;
}

/* Resolves the number of a reference that begins at `at`, behind "&#". */
static int put_numeric(Page *page, const uint8_t **at, const uint8_t *end)
{
    const uint8_t *next = *at;
    uint32_t point = 0, base = 10;
    if (next < end && (*next == 'x' || *next == 'X')) {
        base = 16;
        next++;
    }
    const uint8_t *first = next;
    for (; next < end && next - first < 8; next++) {
        int digit = hex_value(*next);
        if (digit < 0 || (uint32_t)digit >= base)
            break;
        point = point * base + (uint32_t)digit;
    }
    if (next == first || next == end || *next != ';')
        return 0;
    /* Numbers that the Standard maps to others, or that are no characters, are left to the full parser. */
    if (point <= 0x20 || (point >= 0x7F && point < 0xA0) || (point >= 0xD800 && point < 0xE000) || point > 0x10FFFF
        || (point >= 0xFDD0 && point <= 0xFDEF) || (point & 0xFFFE) == 0xFFFE)
        return 0;
    *at = next + 1;
    return put_point(page, point);
}

static int put_named(Page *page, const uint8_t **at, const uint8_t *end)
{
    const uint8_t *name = *at, *next = name;
    while (next < end && next - name < 9 && (is_digit(*next) || is_lower(*next) || is_upper(*next)))
        next++;
    size_t length = (size_t)(next - name);
    if (next == end || *next != ';')
        return 0;
    size_t low = 0, high = sizeof references / sizeof *references;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strncmp(references[middle].name, (const char *)name, length);
        if (order == 0 && references[middle].name[length] != '\0')
            order = 1;
        if (order == 0) {
            *at = next + 1;
            return put_point(page, references[middle].point);
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

/* Replaces `span` by itself with its references resolved. */
static int resolve_references(Page *page, Span *span)
{
    const uint8_t *at = span->text, *end = at + span->length;
    const uint8_t *mark = span->length ? memchr(at, '&', span->length) : NULL;
    if (mark == NULL)
        return 1;
    size_t start = page->decoded_length;
    while (mark != NULL) {
        memcpy(page->decoded + page->decoded_length, at, (size_t)(mark - at));
        page->decoded_length += (size_t)(mark - at);
        at = mark + 1;
        uint8_t next = at < end ? *at : ' ';
        if (next == '#') {
            at++;
            if (!put_numeric(page, &at, end))
                return 0;
        } else if (is_lower(next) || is_upper(next) || is_digit(next)) {
            if (!put_named(page, &at, end))
                return 0;
        } else {
            put_point(page, '&');
        }
        mark = at < end ? memchr(at, '&', (size_t)(end - at)) : NULL;
    }
    memcpy(page->decoded + page->decoded_length, at, (size_t)(end - at));
    page->decoded_length += (size_t)(end - at);
    *span = (Span){page->decoded + start, (uint32_t)(page->decoded_length - start)};
    return 1;
}

static uint32_t count_chars(const uint8_t *text, size_t length)
{
    uint32_t chars = 0;
    for (size_t i = 0; i < length; i++)
        chars += (text[i] & 0xC0) != 0x80;
    return chars;
}

static int add_text(Page *page, Span span, int resolve)
{
    if (span.length == 0)
        return 1;
    if (resolve && !resolve_references(page, &span))
        return 0;
    if (!add_node(page, E_NONE))
        return 0;
    Node *node = &page->nodes[page->count - 1];
    uint32_t commas = 0;
    for (size_t i = 0; i < span.length; i++)
        commas += span.text[i] == ',';
    node->text = span;
    node->chars = count_chars(span.text, span.length);
    node->commas = commas;
    return 1;
}

/* --- words in class and id that tell content from furniture ---------------------------------------------------- */

enum { POSITIVE = 1, NEGATIVE = 2, UNLIKELY = 4, MAYBE = 8 };

/* By their first letter. */
static const struct {
    const char *word;
    uint8_t length, hints;
} hint_words[] = {
    {"ad-", 3, UNLIKELY}, {"agegate", 7, UNLIKELY}, {"and", 3, MAYBE}, {"article", 7, POSITIVE | MAYBE},
    {"banner", 6, NEGATIVE | UNLIKELY}, {"blog", 4, POSITIVE}, {"body", 4, POSITIVE | MAYBE},
    {"column", 6, MAYBE}, {"combx", 5, NEGATIVE | UNLIKELY}, {"comment", 7, NEGATIVE | UNLIKELY},
    {"community", 9, UNLIKELY}, {"contact", 7, NEGATIVE}, {"content", 7, POSITIVE | MAYBE},
    {"disqus", 6, UNLIKELY},
    {"entry", 5, POSITIVE}, {"extra", 5, UNLIKELY},
    {"foot", 4, NEGATIVE | UNLIKELY},
    {"header", 6, UNLIKELY}, {"hentry", 6, POSITIVE}, {"hidden", 6, NEGATIVE},
    {"main", 4, POSITIVE | MAYBE}, {"masthead", 8, NEGATIVE}, {"media", 5, NEGATIVE}, {"menu", 4, UNLIKELY},
    {"meta", 4, NEGATIVE}, {"modal", 5, UNLIKELY},
    {"nav", 3, UNLIKELY},
    {"page", 4, POSITIVE}, {"pager", 5, UNLIKELY}, {"pagination", 10, UNLIKELY}, {"popup", 5, UNLIKELY},
    {"post", 4, POSITIVE}, {"promo", 5, NEGATIVE},
    {"related", 7, NEGATIVE | UNLIKELY}, {"remark", 6, UNLIKELY}, {"rss", 3, UNLIKELY},
    {"scroll", 6, NEGATIVE}, {"shadow", 6, MAYBE}, {"share", 5, UNLIKELY}, {"shoutbox", 8, UNLIKELY},
    {"sidebar", 7, NEGATIVE | UNLIKELY}, {"sponsor", 7, NEGATIVE | UNLIKELY}, {"story", 5, POSITIVE},
    {"tags", 4, NEGATIVE}, {"text", 4, POSITIVE},
    {"widget", 6, NEGATIVE},
};
#define HINT_WORDS (sizeof hint_words / sizeof *hint_words)

/* For each byte of a class: where the words that begin with it begin and end. */
static uint8_t hint_from[256], hint_to[256];
/* For the five low bits of a first letter: those of the second letters that some word has behind it. */
static uint32_t hint_pairs[32];

static void fill_hints(void)
{
    memset(hint_from, 0, sizeof hint_from);
    memset(hint_to, 0, sizeof hint_to);
    memset(hint_pairs, 0, sizeof hint_pairs);
    for (size_t i = HINT_WORDS; i-- > 0;) {
        unsigned c = (uint8_t)hint_words[i].word[0];
        hint_pairs[c & 31] |= UINT32_C(1) << (hint_words[i].word[1] & 31);
        for (unsigned each = c - 0x20;; each = c) {
            hint_from[each] = (uint8_t)i;
            if (!hint_to[each])
                hint_to[each] = (uint8_t)(i + 1);
            if (each == c)
                break;
        }
    }
}

static unsigned hints_of(Span value)
{
    unsigned hints = 0;
    for (size_t at = 0; at + 1 < value.length; at++) {
        unsigned c = value.text[at];
        if (!(hint_pairs[c & 31] >> (value.text[at + 1] & 31) & 1))
            continue;
        for (size_t i = hint_from[c]; i < hint_to[c]; i++)
            if (hint_words[i].length <= value.length - at
                && same_name(value.text + at, hint_words[i].word, hint_words[i].length))
                hints |= hint_words[i].hints;
    }
    return hints;
}

/* --- tags ------------------------------------------------------------------------------------------------------ */

static int keep_attribute(Page *page, size_t element, enum attribute name, Span value, unsigned *seen)
{
    if (*seen & 1u << name)
        return 1;
    *seen |= 1u << name;
    if (!resolve_references(page, &value))
        return 0;
    if (name == AT_CLASS || name == AT_ID) {
        page->nodes[element].hints |= (uint8_t)hints_of(value);
        return 1;
    }
    if (page->attribute_count == page->attribute_room) {
        size_t room = page->attribute_room ? 2 * page->attribute_room : 512;
        Attribute *attributes =
            room > NODES_MAX ? NULL : PyMem_Realloc(page->attributes, room * sizeof *attributes);
        if (attributes == NULL)
            return 0;
        page->attributes = attributes;
        page->attribute_room = room;
    }
    page->attributes[page->attribute_count++] = (Attribute){value, (uint8_t)name};
    return 1;
}

/* Reads the value behind "=". */
static int read_value(Page *page, Span *value)
{
    while (page->at < page->end && is_blank(*page->at))
        page->at++;
    if (page->at == page->end || *page->at == '>')
        return 0;
    const uint8_t *start = page->at;
    if (*start == '"' || *start == '\'') {
        start++;
        const uint8_t *close = memchr(start, *page->at, (size_t)(page->end - start));
        if (close == NULL)
            return 0;
        *value = (Span){start, (uint32_t)(close - start)};
        page->at = close + 1;
        return 1;
    }
    for (; page->at < page->end && !(classes[*page->at] & ENDS_VALUE); page->at++)
        if (classes[*page->at] & SPOILS_VALUE)
            return 0;
    *value = (Span){start, (uint32_t)(page->at - start)};
    return 1;
}

/* Reads attributes up to and with ">"; they are kept for `element`, or for nobody where it is NOBODY. */
static int read_attributes(Page *page, size_t element)
{
    unsigned seen = 0;
    for (;;) {
        page->closes_itself = 0;
        for (; page->at < page->end && (is_blank(*page->at) || *page->at == '/'); page->at++)
            page->closes_itself = *page->at == '/';
        if (page->at == page->end)
            return 0;
        if (*page->at == '>') {
            page->at++;
            return 1;
        }
        const uint8_t *name = page->at;
        for (; page->at < page->end && !(classes[*page->at] & ENDS_NAME); page->at++)
            if (classes[*page->at] & SPOILS_NAME)
                return 0;
        size_t length = (size_t)(page->at - name);
        if (length == 0)
            return 0;
        while (page->at < page->end && is_blank(*page->at))
            page->at++;
        Span value = {name, 0};
        if (page->at < page->end && *page->at == '=') {
            page->at++;
            if (!read_value(page, &value))
                return 0;
        }
        if (element == NOBODY)
            continue;
        for (unsigned i = 0; i < ATTRIBUTE_COUNT; i++)
            if (attribute_names[i].length == length && lowered[*name] == (uint8_t)*attribute_names[i].name
                && same_name(name, attribute_names[i].name, length)) {
                if (!keep_attribute(page, element, (enum attribute)i, value, &seen))
                    return 0;
                break;
            }
    }
}

/* Reads the text of a raw element and its end tag. */
static int read_raw(Page *page, enum element element)
{
    const Element *known = &elements[element];
    if (known->traits & LISTING && page->at < page->end && *page->at == '\n')
        page->at++;
    const uint8_t *start = page->at;
    int is_escaped = 0;
    for (const uint8_t *at = start;; at++) {
        at = at < page->end ? memchr(at, '<', (size_t)(page->end - at)) : NULL;
        if (at == NULL || (size_t)(page->end - at) < known->length + 3)
            return 0;
        /* Behind "<!--" a script may hold scripts, whose ends are not its own. */
        is_escaped |= at[1] == '!';
        if (is_escaped && element == E_SCRIPT && same_name(at + 1, known->name, known->length))
            return 0;
        uint8_t after = at[2 + known->length];
        if (at[1] != '/' || !same_name(at + 2, known->name, known->length)
            || !(is_blank(after) || after == '/' || after == '>'))
            continue;
        page->at = at + 2 + known->length;
        return add_text(page, (Span){start, (uint32_t)(at - start)}, known->traits & ESCAPABLE)
               && read_attributes(page, NOBODY);
    }
}

static int is_implied_to_end(enum element element)
{
    return element == E_P || element == E_LI || element == E_DD || element == E_DT;
}

static void end_implied(Page *page, enum element but)
{
    for (enum element top = top_of(page); top != but && is_implied_to_end(top); top = top_of(page))
        pop_element(page);
}

static int in_table_context(enum element top)
{
    return top == E_TABLE || (elements[top].traits & TABLED && top != E_TD && top != E_TH && top != E_CAPTION);
}

static int is_section(enum element element)
{
    return element == E_TBODY || element == E_THEAD || element == E_TFOOT;
}

static int close_cell(Page *page)
{
    end_implied(page, E_NONE);
    if (top_of(page) != E_TD && top_of(page) != E_TH)
        return 0;
    pop_element(page);
    return 1;
}

/* Opens a part of a table where the innermost element is one. */
static int open_in_table(Page *page, enum element element)
{
    for (;;) {
        enum element top = top_of(page);
        if (top == E_TABLE && element == E_TR)
            return push_element(page, E_TBODY) && push_element(page, E_TR);
        if (top == E_TABLE)
            return (element == E_CAPTION || element == E_COLGROUP || is_section(element)) && push_element(page, element);
        if (top == E_COLGROUP && element == E_COL)
            return add_node(page, E_COL);
        if (is_section(top) && element == E_TR)
            return push_element(page, E_TR);
        if (top == E_TR && (element == E_TD || element == E_TH))
            return push_element(page, element);
        if (top == E_COLGROUP || (top == E_TR && (element == E_TR || is_section(element)))
            || (is_section(top) && is_section(element)))
            pop_element(page);
        else
            return 0;
    }
}

static int close_in_table(Page *page, enum element element)
{
    if (element == E_TD || element == E_TH || element == E_CAPTION) {
        end_implied(page, E_NONE);
    } else if (element != E_COLGROUP) {
        if (!in_table_context(top_of(page)) && !close_cell(page))
            return 0;
        if (element != E_TR && top_of(page) == E_TR)
            pop_element(page);
        if (element == E_TABLE && (is_section(top_of(page)) || top_of(page) == E_COLGROUP))
            pop_element(page);
    }
    if (top_of(page) != element)
        return 0;
    pop_element(page);
    return 1;
}

/* Ends an item of a list that the item `element` follows. */
static int end_item(Page *page, enum element element)
{
    for (size_t i = page->depth; i-- > 0;) {
        enum element open = (enum element)page->nodes[page->open[i]].element;
        if (open == element || (element != E_LI && (open == E_DD || open == E_DT))) {
            end_implied(page, open);
            if (page->depth != i + 1)
                return 0;
            pop_element(page);
            return 1;
        }
        if (elements[open].traits & SPECIAL && open != E_ADDRESS && open != E_DIV && open != E_P)
            return 1;
    }
    return 1;
}

/* Brings the page to where its body may hold `element`, or makes the element itself: then *done is set. */
static int open_outside_body(Page *page, enum element element, int *done)
{
    *done = 1;
    if (page->place == BEFORE_HTML) {
        page->place = BEFORE_HEAD;
        if (element == E_HTML)
            return push_element(page, E_HTML);
        if (!push_element(page, E_HTML))
            return 0;
    }
    if (page->place == BEFORE_HEAD) {
        page->place = IN_HEAD;
        if (element == E_HTML)
            return 0;
        if (element == E_HEAD)
            return push_element(page, E_HEAD);
        if (!push_element(page, E_HEAD))
            return 0;
    }
    uint32_t own = elements[element].traits;
    if (page->place == IN_HEAD_NOSCRIPT)
        return element == E_LINK || element == E_META    ? add_node(page, element)
               : element == E_STYLE ? push_element(page, element)
                                                         : 0;
    if (page->place == IN_HEAD) {
        if (own & HEADLIKE)
            return own & VOID ? add_node(page, element) : push_element(page, element);
        if (element == E_NOSCRIPT) {
            page->place = IN_HEAD_NOSCRIPT;
            return push_element(page, element);
        }
        if (element == E_HEAD || element == E_HTML)
            return 0;
        pop_element(page);
        page->place = AFTER_HEAD;
    }
    if (page->place == AFTER_HEAD) {
        if (own & HEADLIKE || element == E_HEAD || element == E_HTML)
            return 0;
        page->place = IN_BODY;
        if (!push_element(page, E_BODY))
            return 0;
        *done = element == E_BODY;
        return 1;
    }
    return 0;
}

/* Names that end an <svg>, that hold HTML in it, or that mean something else there. */
static int is_foreign(const uint8_t *name, size_t length)
{
    static const char *const others[] = {
        "b", "big", "code", "em", "i", "s", "small", "span", "strong", "strike", "sub", "sup", "tt", "u", "var", "font",
        "ruby", "desc", "foreignobject",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strlen(others[i]) == length && same_name(name, others[i], length))
            return 0;
    return 1;
}

/* Opens an option or a group of them. */
static int open_in_select(Page *page, enum element element)
{
    if (top_of(page) == E_OPTION)
        pop_element(page);
    if (element == E_OPTGROUP && top_of(page) == E_OPTGROUP)
        pop_element(page);
    return (top_of(page) == E_SELECT || (top_of(page) == E_OPTGROUP && element == E_OPTION)) && push_element(page, element);
}

static int open_in_body(Page *page, enum element element)
{
    uint32_t own = elements[element].traits;
    if (page->open_count[E_SELECT] || own & SELECTED)
        return page->open_count[E_SELECT] && own & SELECTED && open_in_select(page, element);
    if (own & TABLED || in_table_context(top_of(page))) {
        if (!in_table_context(top_of(page)) && (!page->open_count[E_TABLE] || !close_cell(page)))
            return 0;
        return own & TABLED && open_in_table(page, element);
    }
    if (element == E_HTML || element == E_HEAD || element == E_BODY || (own & ONCE && page->open_count[element]))
        return 0;
    int is_item = element == E_LI || element == E_DD || element == E_DT;
    if (is_item && !end_item(page, element))
        return 0;
    if ((own & CLOSES_P || is_item) && page->open_count[E_P]) {
        if (top_of(page) != E_P || (element == E_TABLE && !page->is_standard))
            return 0;
        pop_element(page);
        if (page->open_count[E_P])
            return 0;
    }
    if (own & HEADING && elements[top_of(page)].traits & HEADING)
        return 0;
    return own & VOID ? add_node(page, element) : push_element(page, element);
}

static int read_start_tag(Page *page)
{
    const uint8_t *name = page->at;
    while (page->at < page->end && !is_blank(*page->at) && *page->at != '/' && *page->at != '>')
        page->at++;
    size_t length = (size_t)(page->at - name);
    enum element element = element_named(name, length);
    uint32_t own = elements[element].traits;
    if (element == E_HTML && page->place >= IN_BODY && page->at < page->end && *page->at == '>') {
        /* It could only add attributes to the first one. */
        page->at++;
        return 1;
    }
    if (own & REFUSED || page->place >= AFTER_BODY)
        return 0;
    int is_in_svg = page->open_count[E_SVG] != 0;
    if (is_in_svg && (element != E_OTHER || !is_foreign(name, length)))
        return 0;
    int done = 0;
    if (page->place != IN_BODY && !open_outside_body(page, element, &done))
        return 0;
    if (!done && !open_in_body(page, element))
        return 0;
    size_t node = page->count - 1;
    if (element == E_OTHER)
        page->nodes[node].text = (Span){name, (uint32_t)length};
    if (!read_attributes(page, node))
        return 0;
    if (page->closes_itself && (is_in_svg || element == E_SVG))
        pop_element(page);
    if (own & (RAW | ESCAPABLE)) {
        if (!read_raw(page, element))
            return 0;
        pop_element(page);
    } else if (own & LISTING && page->at < page->end && *page->at == '\n') {
        page->at++;
    }
    return 1;
}

static int close_in_body(Page *page, enum element element, Span name)
{
    uint32_t own = elements[element].traits;
    if (element == E_BODY || element == E_HTML) {
        if (page->open_count[E_TABLE])
            return 0;
        page->place = element == E_BODY ? AFTER_BODY : AFTER_HTML;
        return 1;
    }
    if (own & (VOID | REFUSED | RAW | ESCAPABLE) || element == E_HEAD)
        return 0;
    if (own & TABLED || element == E_TABLE)
        return page->open_count[element] && close_in_table(page, element);
    if (own & LENIENT_END)
        end_implied(page, element);
    if (element == E_OPTGROUP || element == E_SELECT) {
        if (top_of(page) == E_OPTION)
            pop_element(page);
        if (element == E_SELECT && top_of(page) == E_OPTGROUP)
            pop_element(page);
    }
    if (element == E_P && !page->open_count[E_P] && !page->open_count[E_SVG] && !page->open_count[E_SELECT]
        && !in_table_context(top_of(page)))
        return push_element(page, E_P) && (pop_element(page), 1);
    if (top_of(page) != element)
        return 0;
    if (element == E_OTHER) {
        Span opened = page->nodes[page->open[page->depth - 1]].text;
        if (opened.length != name.length)
            return 0;
        for (size_t i = 0; i < name.length; i++)
            if (lowered[name.text[i]] != lowered[opened.text[i]])
                return 0;
    }
    pop_element(page);
    return 1;
}

static int read_end_tag(Page *page)
{
    const uint8_t *name = page->at;
    while (page->at < page->end && !is_blank(*page->at) && *page->at != '/' && *page->at != '>')
        page->at++;
    Span span = {name, (uint32_t)(page->at - name)};
    enum element element = element_named(name, span.length);
    if (!read_attributes(page, NOBODY))
        return 0;
    switch (page->place) {
    case IN_HEAD:
        if (element != E_HEAD)
            return 0;
        pop_element(page);
        page->place = AFTER_HEAD;
        return 1;
    case IN_HEAD_NOSCRIPT:
        if (element != E_NOSCRIPT)
            return 0;
        pop_element(page);
        page->place = IN_HEAD;
        return 1;
    case IN_BODY:
        return close_in_body(page, element, span);
    case AFTER_BODY:
        page->place = AFTER_HTML;
        return element == E_HTML;
    default:
        return 0;
    }
}

/* Reads what begins with "<!". */
static int read_declaration(Page *page)
{
    size_t left = (size_t)(page->end - page->at);
    if (left >= 3 && page->at[1] == '-' && page->at[2] == '-') {
        const uint8_t *at = page->at + 3;
        if (at < page->end && (*at == '>' || *at == '-'))
            return 0;
        for (; (at = at < page->end ? memchr(at, '-', (size_t)(page->end - at)) : NULL) != NULL; at++) {
            if (page->end - at < 3)
                return 0;
            if (at[1] == '-' && at[2] == '!')
                return 0;
            if (at[1] == '-' && at[2] == '>') {
                page->at = at + 3;
                return 1;
            }
        }
        return 0;
    }
    if (left < 9 || !same_name(page->at + 1, "doctype", 7) || !is_blank(page->at[8]) || page->place != BEFORE_HTML
        || page->has_doctype)
        return 0;
    const uint8_t *close = memchr(page->at, '>', left);
    if (close == NULL)
        return 0;
    page->has_doctype = 1;
    page->is_standard = close - page->at == 13 && same_name(page->at + 9, "html", 4);
    page->at = close + 1;
    return 1;
}

/* --- texts between tags ------------------------------------------------------------------------------------------ */

static int take_text(Page *page, const uint8_t *start, const uint8_t *end)
{
    const uint8_t *word = start;
    while (word < end && is_blank(*word))
        word++;
    Span blank = {start, (uint32_t)(word - start)};
    int done;
    switch (page->place) {
    case BEFORE_HTML:
    case BEFORE_HEAD:
        if (word == end)
            return 1;
        start = word;
        break;
    case IN_HEAD:
    case AFTER_HEAD:
        if (!add_text(page, blank, 0))
            return 0;
        if (word == end)
            return 1;
        start = word;
        break;
    case IN_BODY:
        if (word < end && in_table_context(top_of(page)))
            return 0;
        return add_text(page, (Span){start, (uint32_t)(end - start)}, 1);
    default:
        return word == end && add_text(page, blank, 0);
    }
    return open_outside_body(page, E_OTHER, &done) && add_text(page, (Span){start, (uint32_t)(end - start)}, 1);
}

/* The "<" that ends a text which goes on at `at`. */
static const uint8_t *end_of_text(const Page *page, const uint8_t *at)
{
    while ((at = at < page->end ? memchr(at, '<', (size_t)(page->end - at)) : NULL) != NULL) {
        uint8_t next = at + 1 < page->end ? at[1] : ' ';
        if (is_lower(next) || is_upper(next) || next == '/' || next == '!' || next == '?')
            return at;
        at++;
    }
    return page->end;
}

static int read_page(Page *page)
{
    while (page->at < page->end) {
        const uint8_t *mark = end_of_text(page, page->at);
        if (mark > page->at && !take_text(page, page->at, mark))
            return 0;
        if (mark == page->end)
            break;
        if (page->end - mark < 3)
            return 0;
        page->at = mark + 1;
        int is_read = 0;
        if (mark[1] == '!') {
            is_read = read_declaration(page);
        } else if (mark[1] == '?') {
            const uint8_t *close = memchr(mark, '>', (size_t)(page->end - mark));
            is_read = page->place == BEFORE_HTML && close != NULL && close[-1] == '?' && close - mark > 2;
            page->at = is_read ? close + 1 : page->at;
        } else if (is_lower(mark[1]) || is_upper(mark[1])) {
            is_read = read_start_tag(page);
        } else if (mark[1] == '/' && (is_lower(mark[2]) || is_upper(mark[2]))) {
            page->at++;
            is_read = read_end_tag(page);
        }
        if (!is_read)
            return 0;
    }
    if (page->place < IN_BODY)
        return 0;
    while (page->depth)
        pop_element(page);
    return 1;
}

/* --- main content: the element that the readability heuristic of the full parser finds --------------------------- */

#define PARAGRAPH_CHARS_MIN 25
#define LANDMARK_CHARS_MIN 200

typedef struct {
    int32_t node;
    double score;
} Candidate;

typedef struct {
    const Page *page;
    Candidate *candidates;
    size_t count, room;
    int strip_landmarks;
    uint32_t chars, links, commas; /* of the whole page */
} Scorer;

static int is_element(const Node *node) { return node->element != E_NONE; }

/* Whether an element's text counts for nothing. */
static int is_left_out(const Scorer *scorer, const Node *node)
{
    uint32_t own = elements[node->element].traits;
    return own & HARD || (own & LANDMARK && scorer->strip_landmarks);
}

/* Whether no main content is looked for in an element. */
static int is_unlikely(const Scorer *scorer, const Node *node)
{
    if (is_left_out(scorer, node))
        return 1;
    if (node->element == E_HTML || node->element == E_BODY)
        return 0;
    return node->hints & UNLIKELY && !(node->hints & MAYBE);
}

/* Writes for each node what stands before it. */
static void count_before(Scorer *scorer)
{
    const Page *page = scorer->page;
    int32_t link_end = 0, skip_end = 0;
    uint32_t chars = 0, links = 0, commas = 0;
    for (int32_t i = 0; i < (int32_t)page->count; i++) {
        Node *node = &page->nodes[i];
        node->chars_before = chars;
        node->links_before = links;
        node->commas_before = commas;
        node->candidate = 0;
        if (i < skip_end)
            continue;
        if (!is_element(node)) {
            chars += node->chars;
            commas += node->commas;
            if (i < link_end)
                links += node->chars;
        } else if (is_left_out(scorer, node)) {
            skip_end = node->end;
        } else if (node->element == E_A) {
            /* One may not stand within another on a plain page. */
            link_end = node->end;
        }
    }
    scorer->chars = chars;
    scorer->links = links;
    scorer->commas = commas;
}

static uint32_t chars_in(const Scorer *scorer, const Node *node)
{
    const Page *page = scorer->page;
    size_t end = (size_t)node->end;
    return (end < page->count ? page->nodes[end].chars_before : scorer->chars) - node->chars_before;
}

static uint32_t commas_in(const Scorer *scorer, const Node *node)
{
    const Page *page = scorer->page;
    size_t end = (size_t)node->end;
    return (end < page->count ? page->nodes[end].commas_before : scorer->commas) - node->commas_before;
}

/* Characters of the links within `node`; those of a link around it do not count. */
static uint32_t links_in(const Scorer *scorer, const Node *node)
{
    const Page *page = scorer->page;
    for (int32_t i = (int32_t)(node - page->nodes); i >= 0; i = page->nodes[i].parent)
        if (page->nodes[i].element == E_A)
            return 0;
    size_t end = (size_t)node->end;
    return (end < page->count ? page->nodes[end].links_before : scorer->links) - node->links_before;
}

static double weight_of(const Node *node)
{
    double weight = 0, base = 0;
    if (node->hints & NEGATIVE)
        weight -= 25;
    if (node->hints & POSITIVE)
        weight += 25;
    switch (node->element) {
    case E_DIV:
        base = 5;
        break;
    case E_PRE: case E_TD: case E_BLOCKQUOTE:
        base = 3;
        break;
    case E_ADDRESS: case E_OL: case E_UL: case E_DL: case E_DD: case E_DT: case E_LI: case E_FORM:
        base = -3;
        break;
    case E_H1: case E_H2: case E_H3: case E_H4: case E_H5: case E_H6: case E_TH:
        base = -5;
        break;
    default:
        break;
    }
    return base + weight;
}

static int add_score(Scorer *scorer, int32_t index, double score)
{
    Node *node = &scorer->page->nodes[index];
    if (node->candidate) {
        scorer->candidates[node->candidate - 1].score += score;
        return 1;
    }
    if (scorer->count == scorer->room) {
        size_t room = scorer->room ? 2 * scorer->room : 64;
        Candidate *candidates = PyMem_Realloc(scorer->candidates, room * sizeof *candidates);
        if (candidates == NULL)
            return 0;
        scorer->candidates = candidates;
        scorer->room = room;
    }
    scorer->candidates[scorer->count++] = (Candidate){index, weight_of(node) + score};
    node->candidate = (int32_t)scorer->count;
    return 1;
}

/* Scores the parents and grandparents of paragraphs. */
static int score_paragraphs(Scorer *scorer)
{
    const Page *page = scorer->page;
    count_before(scorer);
    scorer->count = 0;
    for (int32_t i = 0; i < (int32_t)page->count;) {
        Node *node = &page->nodes[i];
        if (!is_element(node)) {
            i++;
            continue;
        }
        if (is_unlikely(scorer, node)) {
            i = node->end;
            continue;
        }
        i++;
        if ((node->element != E_P && node->element != E_TD && node->element != E_PRE) || node->parent < 0)
            continue;
        uint32_t chars = chars_in(scorer, node);
        if (chars < PARAGRAPH_CHARS_MIN)
            continue;
        uint32_t bonus = chars / 100 < 3 ? chars / 100 : 3;
        double score = 1.0 + (double)(commas_in(scorer, node) + 1) + (double)bonus;
        int32_t grandparent = page->nodes[node->parent].parent;
        if (!add_score(scorer, node->parent, score) || (grandparent >= 0 && !add_score(scorer, grandparent, score / 2.0)))
            return 0;
    }
    return 1;
}

static int32_t best_candidate(const Scorer *scorer)
{
    double best_score = 0;
    int32_t best = -1;
    for (size_t i = 0; i < scorer->count; i++) {
        const Node *node = &scorer->page->nodes[scorer->candidates[i].node];
        uint32_t chars = chars_in(scorer, node);
        double density = chars ? (double)links_in(scorer, node) / (double)chars : 0;
        double score = scorer->candidates[i].score * (1.0 - density);
        if (score > best_score) {
            best_score = score;
            best = scorer->candidates[i].node;
        }
    }
    return best;
}

/* The element of one kind with the most text outside links. */
static int32_t richest(const Scorer *scorer, enum element element)
{
    const Page *page = scorer->page;
    double most = 0;
    int32_t found = -1;
    for (int32_t i = 0; i < (int32_t)page->count;) {
        const Node *node = &page->nodes[i];
        if (!is_element(node)) {
            i++;
            continue;
        }
        if (is_unlikely(scorer, node)) {
            i = node->end;
            continue;
        }
        i++;
        if (node->element != element)
            continue;
        uint32_t chars = chars_in(scorer, node);
        double own = (double)chars - (double)links_in(scorer, node);
        if (chars >= LANDMARK_CHARS_MIN && own > most) {
            most = own;
            found = i - 1;
        }
    }
    return found;
}

/* Finds the main content: *found is its node, or -1. */
static int find_main(const Page *page, int32_t *found)
{
    Scorer scorer = {page, NULL, 0, 0, 1, 0, 0, 0};
    int is_done = score_paragraphs(&scorer);
    *found = is_done ? best_candidate(&scorer) : -1;
    if (is_done && *found < 0) {
        scorer.strip_landmarks = 0;
        is_done = score_paragraphs(&scorer);
        *found = is_done ? best_candidate(&scorer) : -1;
    }
    if (is_done && *found < 0) {
        scorer.strip_landmarks = 1;
        count_before(&scorer);
        *found = richest(&scorer, E_ARTICLE);
        if (*found < 0)
            *found = richest(&scorer, E_MAIN);
    }
    PyMem_Free(scorer.candidates);
    return is_done;
}

/* --- visible text: blocks on lines of their own, lists indented, tables as grids --------------------------------- */

#define INDENTS_MAX 17

typedef struct {
    uint8_t *bytes;
    size_t length, room, room_max;
    int is_broken;
} Buffer;

typedef struct {
    const Page *page;
    const char *bullet;
    size_t bullet_length;
    Buffer out;
    size_t prefix; /* spaces in front of each line */
    int indents;
    int started, line_has_content, space_pending, pending_loose, suppress_break, tight;
} Layout;

static void append(Buffer *buffer, const uint8_t *bytes, size_t length)
{
    if (length == 0)
        return;
    if (buffer->room - buffer->length < length) {
        size_t room = 2 * (buffer->length + length) + 256;
        uint8_t *grown = buffer->is_broken || room > buffer->room_max ? NULL : PyMem_Realloc(buffer->bytes, room);
        if (grown == NULL) {
            buffer->is_broken = 1;
            return;
        }
        buffer->bytes = grown;
        buffer->room = room;
    }
    memcpy(buffer->bytes + buffer->length, bytes, length);
    buffer->length += length;
}

static void append_byte(Buffer *buffer, uint8_t byte) { append(buffer, &byte, 1); }

static void append_spaces(Buffer *buffer, size_t count)
{
    while (count--)
        append_byte(buffer, ' ');
}

static void begin_line(Layout *layout)
{
    append_byte(&layout->out, '\n');
    append_spaces(&layout->out, layout->prefix);
    layout->line_has_content = 0;
    layout->space_pending = 0;
}

static void begin_block(Layout *layout, int loose)
{
    if (!layout->started) {
        layout->started = 1;
        append_spaces(&layout->out, layout->prefix);
    } else if (layout->suppress_break) {
        layout->suppress_break = 0;
    } else {
        if ((layout->pending_loose || loose) && !layout->tight)
            append_byte(&layout->out, '\n');
        begin_line(layout);
    }
    layout->pending_loose = loose;
    layout->space_pending = 0;
}

/* Words with single spaces between them go out in one piece. */
static void lay_out_text(Layout *layout, Span text)
{
    const uint8_t *at = text.text, *end = at + text.length;
    while (at < end) {
        if (is_blank(*at)) {
            layout->space_pending = 1;
            at++;
            continue;
        }
        const uint8_t *words = at;
        while (at < end && (!is_blank(*at) || (*at == ' ' && at + 1 < end && !is_blank(at[1]))))
            at++;
        if (layout->space_pending && layout->line_has_content)
            append_byte(&layout->out, ' ');
        layout->space_pending = 0;
        append(&layout->out, words, (size_t)(at - words));
        layout->line_has_content = 1;
    }
}

static int is_blank_text(Span text)
{
    for (size_t i = 0; i < text.length; i++)
        if (!is_blank(text.text[i]))
            return 0;
    return 1;
}

static uint32_t traits_of(const Node *node) { return elements[node->element].traits; }

static size_t indent(Layout *layout, size_t columns, int levels)
{
    size_t before = layout->prefix;
    layout->indents += levels;
    if (layout->indents <= INDENTS_MAX)
        layout->prefix += columns;
    return before;
}

static void lay_out_block(Layout *layout, int32_t index);

static void lay_out_inline_children(Layout *layout, int32_t index);

static void lay_out_inline(Layout *layout, int32_t index)
{
    const Node *node = &layout->page->nodes[index];
    if (!is_element(node))
        lay_out_text(layout, node->text);
    else if (traits_of(node) & BLOCK)
        lay_out_block(layout, index);
    else if (node->element == E_BR)
        begin_line(layout);
    else if (!(traits_of(node) & HIDDEN))
        lay_out_inline_children(layout, index);
}

static void lay_out_inline_children(Layout *layout, int32_t index)
{
    const Node *nodes = layout->page->nodes;
    for (int32_t child = index + 1; child < nodes[index].end; child = nodes[child].end)
        lay_out_inline(layout, child);
}

static void lay_out_children(Layout *layout, int32_t index)
{
    const Node *nodes = layout->page->nodes;
    int in_run = 0;
    for (int32_t child = index + 1; child < nodes[index].end; child = nodes[child].end) {
        const Node *node = &nodes[child];
        if (is_element(node) && traits_of(node) & HIDDEN)
            continue;
        if (is_element(node) && traits_of(node) & BLOCK) {
            in_run = 0;
            lay_out_block(layout, child);
            continue;
        }
        if (!in_run) {
            if (!is_element(node) && is_blank_text(node->text))
                continue;
            begin_block(layout, !layout->tight);
            in_run = 1;
        }
        lay_out_inline(layout, child);
    }
}

/* The number that an attribute begins with, or `otherwise`. Longer ones are refused. */
static long number_of(Layout *layout, int32_t index, enum attribute name, long otherwise)
{
    const Page *page = layout->page;
    size_t end = (size_t)index + 1 < page->count ? (size_t)page->nodes[index + 1].attributes : page->attribute_count;
    for (size_t i = (size_t)page->nodes[index].attributes; i < end; i++) {
        Span value = page->attributes[i].value;
        size_t digits = 0;
        long number = 0;
        if (page->attributes[i].name != name)
            continue;
        for (; digits < value.length && is_digit(value.text[digits]); digits++) {
            if (digits == ATTRIBUTE_DIGITS_MAX) {
                layout->out.is_broken = 1;
                return 0;
            }
            number = 10 * number + (value.text[digits] - '0');
        }
        return digits ? number : otherwise;
    }
    return otherwise;
}

static int leads_with_inline(const Layout *layout, int32_t index)
{
    const Node *nodes = layout->page->nodes;
    for (int32_t child = index + 1; child < nodes[index].end; child = nodes[child].end) {
        const Node *node = &nodes[child];
        if (!is_element(node)) {
            if (!is_blank_text(node->text))
                return 1;
        } else if (!(traits_of(node) & HIDDEN)) {
            return !(traits_of(node) & BLOCK);
        }
    }
    return 0;
}

static int is_list(const Node *node)
{
    return node->element == E_UL || node->element == E_OL || node->element == E_MENU;
}

static size_t put_marker(Layout *layout, int is_ordered, long number)
{
    if (!is_ordered) {
        append(&layout->out, (const uint8_t *)layout->bullet, layout->bullet_length);
        return layout->bullet_length;
    }
    char digits[24];
    int length = PyOS_snprintf(digits, sizeof digits, "%ld. ", number);
    append(&layout->out, (const uint8_t *)digits, (size_t)length);
    return (size_t)length;
}

static void lay_out_list(Layout *layout, int32_t index)
{
    const Node *nodes = layout->page->nodes;
    int is_ordered = nodes[index].element == E_OL;
    long number = is_ordered ? number_of(layout, index, AT_START, 1) : 1;
    size_t nested_indent = 2;
    for (int32_t child = index + 1; child < nodes[index].end; child = nodes[child].end) {
        int is_item = nodes[child].element == E_LI;
        if (!is_item && !is_list(&nodes[child]))
            continue;
        if (is_item) {
            begin_block(layout, 0);
            if (is_ordered)
                number = number_of(layout, child, AT_VALUE, number);
            nested_indent = put_marker(layout, is_ordered, number);
            number++;
            layout->line_has_content = 1;
        }
        int indents = layout->indents, tight = layout->tight;
        size_t prefix = indent(layout, nested_indent, 2);
        layout->tight = 1;
        if (is_item) {
            layout->suppress_break = leads_with_inline(layout, child);
            lay_out_children(layout, child);
        } else {
            lay_out_list(layout, child);
        }
        layout->tight = tight;
        layout->indents = indents;
        layout->prefix = prefix;
    }
}

static void lay_out_quote(Layout *layout, int32_t index)
{
    int indents = layout->indents, tight = layout->tight;
    size_t prefix = indent(layout, 4, 1);
    layout->tight = 0;
    if (layout->started) {
        int space_pending = layout->space_pending;
        if (!tight)
            append_byte(&layout->out, '\n');
        begin_line(layout);
        layout->space_pending = space_pending;
        layout->pending_loose = 1;
        layout->suppress_break = 1;
    }
    lay_out_children(layout, index);
    layout->tight = tight;
    layout->indents = indents;
    layout->prefix = prefix;
}

static void lay_out_lines(Layout *layout, int32_t index)
{
    const Node *nodes = layout->page->nodes;
    Span last = {NULL, 0};
    begin_block(layout, 1);
    int owed = 0; /* the line feed at the very end does not count */
    for (int32_t i = index + 1; i < nodes[index].end; i++) {
        if (is_element(&nodes[i]))
            continue;
        last = nodes[i].text;
        for (size_t at = 0; at < last.length; at++) {
            if (owed)
                begin_line(layout);
            owed = last.text[at] == '\n';
            if (!owed) {
                append_byte(&layout->out, last.text[at]);
                layout->line_has_content = 1;
            }
        }
    }
}

typedef struct {
    size_t start, length, chars;
} Cell;

typedef struct {
    int32_t *rows;
    size_t row_count, columns;
    Cell *cells;
    size_t *widths;
    Buffer text;
} Grid;

static int is_cell(const Node *node) { return node->element == E_TD || node->element == E_TH; }

/* Finds the rows of a table, and how many cells the longest has. */
static int find_rows(const Page *page, int32_t table, Grid *grid)
{
    const Node *nodes = page->nodes;
    size_t room = 0;
    int32_t end = nodes[table].end;
    for (int32_t i = table + 1; i < end;) {
        if (is_section((enum element)nodes[i].element)) {
            i++;
            continue;
        }
        if (nodes[i].element == E_TR) {
            size_t cells = 0;
            for (int32_t child = i + 1; child < nodes[i].end; child = nodes[child].end)
                cells += (size_t)is_cell(&nodes[child]);
            if (cells > grid->columns)
                grid->columns = cells;
            if (grid->row_count == room) {
                room = room ? 2 * room : 16;
                int32_t *rows = PyMem_Realloc(grid->rows, room * sizeof *rows);
                if (rows == NULL)
                    return 0;
                grid->rows = rows;
            }
            grid->rows[grid->row_count++] = i;
        }
        i = nodes[i].end;
    }
    return 1;
}

/* Lays out one cell by itself, on one line. */
static void fill_cell(Layout *layout, int32_t index, Grid *grid, Cell *cell)
{
    Layout outer = *layout;
    layout->out = (Buffer){NULL, 0, 0, outer.out.room_max, 0};
    layout->prefix = 0;
    layout->line_has_content = 1;
    layout->space_pending = 0;
    lay_out_inline_children(layout, index);
    Buffer filled = layout->out;
    layout->out = outer.out;
    layout->prefix = outer.prefix;
    layout->line_has_content = outer.line_has_content;
    layout->space_pending = outer.space_pending;
    layout->started = outer.started;
    for (size_t i = 0; i < filled.length; i++)
        if (filled.bytes[i] == '\n')
            filled.bytes[i] = ' ';
    cell->start = grid->text.length;
    cell->length = filled.length;
    cell->chars = count_chars(filled.bytes, filled.length);
    if (filled.length)
        append(&grid->text, filled.bytes, filled.length);
    layout->out.is_broken |= filled.is_broken | grid->text.is_broken;
    PyMem_Free(filled.bytes);
}

static void fill_grid(Layout *layout, Grid *grid)
{
    const Node *nodes = layout->page->nodes;
    for (size_t row = 0; row < grid->row_count; row++) {
        size_t column = 0;
        int32_t index = grid->rows[row];
        for (int32_t child = index + 1; child < nodes[index].end; child = nodes[child].end) {
            if (!is_cell(&nodes[child]))
                continue;
            Cell *cell = &grid->cells[row * grid->columns + column];
            fill_cell(layout, child, grid, cell);
            if (cell->chars > grid->widths[column])
                grid->widths[column] = cell->chars;
            column++;
        }
    }
}

static void put_grid(Layout *layout, const Grid *grid)
{
    begin_block(layout, 1);
    for (size_t row = 0; row < grid->row_count && !layout->out.is_broken; row++) {
        if (row)
            begin_line(layout);
        for (size_t column = 0; column < grid->columns; column++) {
            const Cell *cell = &grid->cells[row * grid->columns + column];
            if (column)
                append_spaces(&layout->out, 2);
            if (cell->length)
                append(&layout->out, grid->text.bytes + cell->start, cell->length);
            if (column + 1 < grid->columns)
                append_spaces(&layout->out, grid->widths[column] - cell->chars);
        }
        layout->line_has_content = 1;
    }
}

static void lay_out_table(Layout *layout, int32_t index)
{
    Grid grid = {NULL, 0, 0, NULL, NULL, {NULL, 0, 0, layout->out.room_max, 0}};
    if (!find_rows(layout->page, index, &grid))
        layout->out.is_broken = 1;
    if (grid.row_count && grid.columns > CELLS_MAX / grid.row_count)
        layout->out.is_broken = 1;
    if (grid.row_count && grid.columns && !layout->out.is_broken) {
        grid.cells = PyMem_Calloc(grid.row_count * grid.columns, sizeof *grid.cells);
        grid.widths = PyMem_Calloc(grid.columns, sizeof *grid.widths);
        if (grid.cells == NULL || grid.widths == NULL) {
            layout->out.is_broken = 1;
        } else {
            fill_grid(layout, &grid);
            if (!layout->out.is_broken)
                put_grid(layout, &grid);
        }
    }
    PyMem_Free(grid.rows);
    PyMem_Free(grid.cells);
    PyMem_Free(grid.widths);
    PyMem_Free(grid.text.bytes);
}

static void lay_out_block(Layout *layout, int32_t index)
{
    switch (layout->page->nodes[index].element) {
    case E_UL: case E_OL: case E_MENU:
        lay_out_list(layout, index);
        break;
    case E_PRE:
        lay_out_lines(layout, index);
        break;
    case E_TABLE:
        lay_out_table(layout, index);
        break;
    case E_BLOCKQUOTE:
        lay_out_quote(layout, index);
        break;
    default:
        lay_out_children(layout, index);
        break;
    }
}

/* The text of one element as bytes in UTF-8; NULL without an error where the page is not plain. */
static PyObject *text_of(const Page *page, int32_t index, const char *bullet, uint32_t *chars)
{
    Layout layout = {.page = page, .bullet = bullet, .bullet_length = strlen(bullet)};
    layout.out.room_max = TEXT_GROWTH * (size_t)(page->end - page->begin) + 65536;
    if (traits_of(&page->nodes[index]) & BLOCK)
        lay_out_block(&layout, index);
    else
        lay_out_children(&layout, index);
    PyObject *result = NULL;
    if (!layout.out.is_broken) {
        const uint8_t *start = layout.out.bytes, *end = start + layout.out.length;
        while (start < end && *start == '\n')
            start++;
        while (end > start && is_blank(end[-1]))
            end--;
        *chars = count_chars(start, (size_t)(end - start));
        result = PyBytes_FromStringAndSize((const char *)start, end - start);
    }
    PyMem_Free(layout.out.bytes);
    return result;
}

/* --- what Python gets -------------------------------------------------------------------------------------------- */

static PyObject *string_of(Span span)
{
    return PyUnicode_DecodeUTF8((const char *)span.text, (Py_ssize_t)span.length, NULL);
}

/* An attribute as a str, or None. */
static PyObject *attribute_of(const Page *page, size_t index, enum attribute name)
{
    size_t end = index + 1 < page->count ? (size_t)page->nodes[index + 1].attributes : page->attribute_count;
    for (size_t i = (size_t)page->nodes[index].attributes; i < end; i++)
        if (page->attributes[i].name == name)
            return string_of(page->attributes[i].value);
    Py_INCREF(Py_None);
    return Py_None;
}

/* The text of all texts within an element as a str. */
static PyObject *content_of(const Page *page, size_t index)
{
    size_t end = (size_t)page->nodes[index].end, length = 0, texts = 0, only = 0;
    for (size_t i = index + 1; i < end; i++)
        if (!is_element(&page->nodes[i])) {
            length += page->nodes[i].text.length;
            only = i;
            texts++;
        }
    if (texts == 1)
        return string_of(page->nodes[only].text);
    uint8_t *joined = PyMem_Malloc(length ? length : 1);
    if (joined == NULL)
        return PyErr_NoMemory();
    size_t at = 0;
    for (size_t i = index + 1; i < end; i++)
        if (!is_element(&page->nodes[i])) {
            memcpy(joined + at, page->nodes[i].text.text, page->nodes[i].text.length);
            at += page->nodes[i].text.length;
        }
    PyObject *result = string_of((Span){joined, (uint32_t)length});
    PyMem_Free(joined);
    return result;
}

/* Which attributes of an element are asked for. */
static void wanted_of(enum element element, enum attribute wanted[3])
{
    wanted[0] = wanted[1] = wanted[2] = ATTRIBUTE_COUNT;
    switch (element) {
    case E_A: case E_AREA:
        wanted[0] = AT_HREF;
        wanted[1] = AT_REL;
        break;
    case E_LINK:
        wanted[0] = AT_HREF;
        wanted[1] = AT_REL;
        wanted[2] = AT_TYPE;
        break;
    case E_META:
        wanted[0] = AT_NAME;
        wanted[1] = AT_HTTP_EQUIV;
        wanted[2] = AT_CONTENT;
        break;
    case E_BASE:
        wanted[0] = AT_HREF;
        break;
    case E_IFRAME: case E_IMG:
        wanted[0] = AT_SRC;
        break;
    default:
        break;
    }
}

/* (name, up to three attributes, text) of an element. */
static PyObject *walked_row(const Page *page, size_t index, PyObject *name)
{
    enum element element = (enum element)page->nodes[index].element;
    enum attribute wanted[3];
    PyObject *row = PyTuple_New(5);
    if (row == NULL)
        return NULL;
    Py_INCREF(name);
    PyTuple_SetItem(row, 0, name);
    wanted_of(element, wanted);
    for (int i = 0; i < 3; i++) {
        PyObject *value = attribute_of(page, index, wanted[i]);
        if (value == NULL || PyTuple_SetItem(row, 1 + i, value) < 0) {
            Py_DECREF(row);
            return NULL;
        }
    }
    PyObject *text = element == E_A || element == E_TITLE ? content_of(page, index) : PyUnicode_FromStringAndSize("", 0);
    if (text == NULL || PyTuple_SetItem(row, 4, text) < 0) {
        Py_DECREF(row);
        return NULL;
    }
    return row;
}

static PyObject *walked_rows(const Page *page, int with_images)
{
    PyObject *names[ELEMENT_COUNT] = {NULL};
    PyObject *rows = PyList_New(0);
    for (size_t i = 0; rows != NULL && i < page->count; i++) {
        enum element element = (enum element)page->nodes[i].element;
        if (!(elements[element].traits & WALKED) || (element == E_IMG && !with_images))
            continue;
        if (names[element] == NULL)
            names[element] = PyUnicode_InternFromString(elements[element].name);
        PyObject *row = names[element] ? walked_row(page, i, names[element]) : NULL;
        if (row == NULL || PyList_Append(rows, row) < 0) {
            Py_CLEAR(rows);
        }
        Py_XDECREF(row);
    }
    for (unsigned i = 0; i < ELEMENT_COUNT; i++)
        Py_XDECREF(names[i]);
    return rows;
}

/* Whether all bytes are UTF-8 without NUL and byte order mark. */
static int is_readable(const char *text, Py_ssize_t length)
{
    if (length < 16 || length > PAGE_BYTES_MAX || memchr(text, 0, (size_t)length)
        || memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        return 0;
    uint64_t high = 0, word;
    Py_ssize_t at = 0;
    for (; at + 8 <= length; at += 8) {
        memcpy(&word, text + at, 8);
        high |= word;
    }
    for (; at < length; at++)
        high |= (uint64_t)(uint8_t)text[at] << 56;
    if (!(high & UINT64_C(0x8080808080808080)))
        return 1;
    PyObject *decoded = PyUnicode_DecodeUTF8(text, length, NULL);
    if (decoded == NULL)
        PyErr_Clear();
    Py_XDECREF(decoded);
    return decoded != NULL;
}

/* Copies a page with line feeds for its line ends; returns how long the copy is. */
static size_t normalize_lines(uint8_t *to, const uint8_t *from, size_t length)
{
    size_t written = 0;
    for (size_t i = 0; i < length; i++) {
        if (from[i] != '\r')
            to[written++] = from[i];
        else if (i + 1 == length || from[i + 1] != '\n')
            to[written++] = '\n';
    }
    return written;
}

static PyObject *answer_of(const Page *page, int with_images)
{
    int32_t main = -1;
    uint32_t text_chars = 0, main_chars = 0;
    PyObject *result = NULL, *text = NULL, *content = NULL, *rows = NULL, *language = NULL;
    if (!find_main(page, &main))
        return NULL;
    text = text_of(page, 0, "", &text_chars);
    if (text != NULL)
        content = main < 0 ? PyBytes_FromStringAndSize("", 0) : text_of(page, main, "* ", &main_chars);
    if (content != NULL)
        rows = walked_rows(page, with_images);
    if (rows != NULL)
        language = attribute_of(page, 0, AT_LANG);
    if (language != NULL)
        result = Py_BuildValue("(OOOkOk)", rows, language, text, (unsigned long)text_chars, content,
                               (unsigned long)main_chars);
    Py_XDECREF(text);
    Py_XDECREF(content);
    Py_XDECREF(rows);
    Py_XDECREF(language);
    return result;
}

PyDoc_STRVAR(read_plain_doc,
"read_plain(utf8, with_images, /)\n--\n\n"
"What amble.formats.html finds in the tree of a document in UTF-8, or None where only the full parser can tell.");

static PyObject *read_plain(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count)
{
    char *text;
    Py_ssize_t length;
    PyObject *result = NULL;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "read_plain takes bytes and a bool");
        return NULL;
    }
    if (PyBytes_AsStringAndSize(arguments[0], &text, &length) < 0)
        return NULL;
    int with_images = PyObject_IsTrue(arguments[1]);
    if (with_images < 0)
        return NULL;
    if (is_readable(text, length)) {
        Page page = {.at = (const uint8_t *)text};
        uint8_t *normal = NULL;
        page.end = page.at + length;
        if (memchr(text, '\r', (size_t)length) != NULL && (normal = PyMem_Malloc((size_t)length)) != NULL) {
            page.end = normal + normalize_lines(normal, page.at, (size_t)length);
            page.at = normal;
        }
        page.begin = page.at;
        page.decoded = PyMem_Malloc((size_t)length);
        if (page.decoded != NULL && read_page(&page))
            result = answer_of(&page, with_images);
        PyMem_Free(normal);
        PyMem_Free(page.nodes);
        PyMem_Free(page.attributes);
        PyMem_Free(page.decoded);
    }
    if (result == NULL && !PyErr_Occurred()) {
        Py_INCREF(Py_None);
        result = Py_None;
    }
    return result;
}
