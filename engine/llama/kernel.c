/* Analysis of a row of logits for one step: its best tokens, exact figures, and the record of the drawn token.

   After a decode none of the program is left in the CPU caches, so that a step in Python would spend more time fetching
   the program than on arithmetic; this is one short stretch of code over contiguous memory. kernel.py describes the
   same structures to Python. Vectors use the extensions of GCC and Clang, which compile for every processor, and are as
   wide as most processors support: the parts of a wider one would be compared one by one. */

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__) && __has_attribute(target_clones)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("fma", "default")))
enum { LANES = 8 };
#else
#define FOR_EACH_PROCESSOR
enum { LANES = 4 };
#endif
#ifdef _OPENMP
#include <omp.h>
#define THREAD omp_get_thread_num()
#define NUM_THREADS omp_get_num_threads()
#else
#define THREAD 0
#define NUM_THREADS 1
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { GROUP = 16, BLOCK = 64, CHUNK = 8192 };
typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t quad_ints __attribute__((vector_size(16)));
typedef int64_t pair __attribute__((vector_size(16)));
typedef float floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef double doubles __attribute__((vector_size(8 * LANES)));

/* llama_token_data and llama_token_data_array of llama.h, the latter followed by the start of the memory of `data` */
typedef struct {
    int32_t id;
    float logit, p;
} candidate;

typedef struct {
    candidate *data;
    size_t size;
    int64_t selected;
    bool sorted;
    candidate *room;
} candidates;

/* RECORD of engine/results.py */
typedef struct {
    int32_t id, rank;
    double logprob, entropy, normaliser, p_final, draw, elapsed_s;
    int32_t flags, num_kept;
} record;

/* Partial results for CHUNK tokens of a row: the largest logit, and the sums of e^x and x e^x, x = logit - highest. */
typedef struct {
    double total, weighted, highest;
} part;

/* The best tokens that one thread has found, as a heap of at most k keys. No key below `least` can be among the k best
   of the row: k better ones are known to this thread or to another. */
typedef struct {
    uint64_t *keys;
    uint64_t least;
    int32_t num, k;
} finds;

/* Results for one row: its best `num_top` tokens, largest logit first and ties by id, and if it `is_measured` the log
   of the summed exponentials and the entropy in nats. `top`, `heap` and `p_by_id` have room for the vocabulary, `parts`
   for its chunks. `num_threads` threads analyse a row; their number does not affect the results. */
typedef struct {
    candidate *top;
    uint64_t *heap;
    float *p_by_id;
    part *parts;
    double normaliser, entropy;
    int32_t num_vocab, num_top, num_threads;
    bool is_measured;
} look;

/* Return a key that is larger for a better token: one with a larger logit, or with the same logit and a smaller id. */
static inline uint64_t key_of(int32_t id, float logit) {
    union {
        float real;
        int32_t bits;
    } as = {logit + 0.0f};
    int32_t ordered = as.bits ^ ((as.bits >> 31) & INT32_MAX);
    return (uint64_t)((uint32_t)ordered ^ 0x80000000u) << 32 | (uint32_t)~id;
}

static inline int32_t id_of(uint64_t key) {
    return (int32_t)~(uint32_t)key;
}

/* Put `moved` into the heap at index `at` or below; it is a min-heap, with the worst key at the top. */
static void sift(uint64_t *heap, int32_t size, int32_t at, uint64_t moved) {
    for (int32_t child; (child = 2 * at + 1) < size; at = child) {
        child += child + 1 < size && heap[child + 1] < heap[child];
        if (heap[child] >= moved) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static void make_heap(uint64_t *keys, int32_t size) {
    for (int32_t at = size / 2; at--;) sift(keys, size, at, keys[at]);
}

static void sort_best_first(uint64_t *heap, int32_t size) {
    for (int32_t end = size - 1; end > 0; end--) {
        uint64_t last = heap[end];
        heap[end] = heap[0];
        sift(heap, end, 0, last);
    }
}

/* Return true if one of GROUP logits is not smaller than the limit, or if it or the limit is NaN. */
ALWAYS_INLINE bool reaches(const float *logits, float limit) {
    quad_ints found = {0};
    for (int32_t i = 0; i < GROUP; i += 4) found |= ~(*(const quad *)(logits + i) < limit);
    pair both = (pair)found;
    return both[0] | both[1];
}

/* Add the tokens of a row from `first` to before `last` that are better than `least`; GROUP logits of which none can be
   are skipped. Returns false if a logit is NaN. */
static bool find_best(finds *mine, const float *row, int32_t first, int32_t last) {
    uint64_t *keys = mine->keys, least = mine->least;
    float limit = least ? row[id_of(least)] : NAN;
    for (int32_t start = first; start < last; start += GROUP) {
        int32_t end = start + GROUP < last ? start + GROUP : last;
        if (end - start == GROUP && !reaches(row + start, limit)) continue;
        for (int32_t id = start; id < end; id++) {
            if (isnan(row[id])) return false;
            uint64_t key = key_of(id, row[id]);
            if (key <= least) continue;
            if (mine->num < mine->k) {
                keys[mine->num++] = key;
                if (mine->num < mine->k) continue;
                make_heap(keys, mine->k);
            } else {
                sift(keys, mine->k, 0, key);
            }
            if (keys[0] <= least) continue;
            least = keys[0];
            limit = row[id_of(least)];
        }
    }
    mine->least = least;
    return true;
}

/* Put the k best of the first `num_keys` keys of the heap into `top`, best first. */
static void list_top(look *seen, const float *row, int32_t num_keys, int32_t k) {
    uint64_t *heap = seen->heap;
    make_heap(heap, k);
    for (int32_t i = k; i < num_keys; i++)
        if (heap[i] > heap[0]) sift(heap, k, 0, heap[i]);
    sort_best_first(heap, k);
    for (int32_t i = 0; i < k; i++) seen->top[i] = (candidate){id_of(heap[i]), row[id_of(heap[i])], 0};
}

/* Lower bound for x: its exponential, 1e-38, is a normal number and negligible beside the 1 of the largest logit. */
static const float SMALLEST = -87;

/* Adding this rounds a number to the nearest integer in the low bits, plus the bias of a float's exponent. */
static const float TO_EXPONENT = 0x1.8p23f + 127;

/* e^x for SMALLEST <= x <= 0, to a unit in the last place: x = n ln 2 + r, and the polynomial of Cephes' expf in r. */
ALWAYS_INLINE floats exponential(floats x) {
    floats exponent = x * 1.44269504f + TO_EXPONENT;
    floats n = exponent - TO_EXPONENT;
    floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
    floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    return p * (floats)((ints)exponent << 23);
}

ALWAYS_INLINE floats choose(ints is_first, floats first, floats second) {
    return (floats)((is_first & (ints)first) | (~is_first & (ints)second));
}

/* Add the sums of e^x and x e^x over a block, with x = logit - highest. */
ALWAYS_INLINE void add_block(const float *block, float highest, doubles *total, doubles *weighted) {
    floats sum = {0}, weighted_sum = {0};
    for (int32_t i = 0; i < BLOCK; i += LANES) {
        floats x = *(const floats *)(block + i) - highest;
        x = choose(x > SMALLEST, x, (floats){0} + SMALLEST);
        floats e = exponential(x);
        sum += e;
        weighted_sum += x * e;
    }
    *total += __builtin_convertvector(sum, doubles);
    *weighted += __builtin_convertvector(weighted_sum, doubles);
}

enum { SIDE_BY_SIDE = 4 };

ALWAYS_INLINE float highest_of(const float *row, int32_t num) {
    floats most[SIDE_BY_SIDE];
    for (int32_t j = 0; j < SIDE_BY_SIDE; j++) most[j] = (floats){0} - INFINITY;
    int32_t i = 0;
    for (; i + SIDE_BY_SIDE * LANES <= num; i += SIDE_BY_SIDE * LANES) {
        for (int32_t j = 0; j < SIDE_BY_SIDE; j++) {
            floats x = *(const floats *)(row + i + j * LANES);
            most[j] = choose(x > most[j], x, most[j]);
        }
    }
    float highest = -INFINITY;
    for (int32_t j = 0; j < SIDE_BY_SIDE * LANES; j++) {
        float x = most[j / LANES][j % LANES];
        highest = x > highest ? x : highest;
    }
    for (; i < num; i++) highest = row[i] > highest ? row[i] : highest;
    return highest;
}

/* Compute the partial results of `num` logits, a whole chunk or the rest of the row; zero sums if none is finite. */
FOR_EACH_PROCESSOR static void measure(part *found, const float *row, int32_t num) {
    float highest = highest_of(row, num);
    *found = (part){0, 0, highest};
    if (!isfinite(highest)) return;
    doubles totals = {0}, weighted_totals = {0};
    int32_t start = 0;
    for (; start + BLOCK <= num; start += BLOCK) add_block(row + start, highest, &totals, &weighted_totals);
    if (start < num) {
        float rest[BLOCK];
        for (int32_t i = 0; i < BLOCK; i++) rest[i] = start + i < num ? row[start + i] : -INFINITY;
        add_block(rest, highest, &totals, &weighted_totals);
    }
    for (int32_t j = 0; j < LANES; j++) {
        found->total += totals[j];
        found->weighted += weighted_totals[j];
    }
}

/* Combine the chunks' partial results. With x = logit - highest over the whole row: normaliser = highest +
   log(sum e^x), entropy = log(sum e^x) - sum(x e^x) / sum e^x. A chunk's own x is larger than that by the difference
   between the row's highest logit and the chunk's. */
static void sum_up(look *seen, double highest) {
    double total = 0, weighted = 0;
    for (int32_t i = 0; i * CHUNK < seen->num_vocab; i++) {
        const part *one = seen->parts + i;
        if (one->total == 0) continue;
        double below = one->highest - highest, scale = exp(below);
        total += scale * one->total;
        weighted += scale * (one->weighted + below * one->total);
    }
    double log_total = log(total), entropy = log_total - weighted / total;
    seen->normaliser = highest + log_total;
    seen->entropy = entropy > 0 ? entropy : 0;
}

static void raise_to(uint64_t *shared, uint64_t least) {
    uint64_t known = __atomic_load_n(shared, __ATOMIC_RELAXED);
    while (least > known &&
           !__atomic_compare_exchange_n(shared, &known, least, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

/* Find the k <= num_vocab best tokens of a row, and its figures if `is_measured`. Returns false for a row that holds
   NaN, +inf, or nothing finite.

   With OpenMP the chunks of a row are shared among the threads with which llama.cpp has just computed it, which spin
   until the next decode. Each thread puts its finds into its own part of the heap. */
bool look_at(look *seen, const float *row, int32_t k, bool is_measured) {
    int32_t num_vocab = seen->num_vocab, num_keys = 0;
    bool is_shared = num_vocab > CHUNK && seen->num_threads > 1 && (int64_t)k * seen->num_threads <= num_vocab;
    uint64_t least = 0;
    bool has_nan = false;
    seen->num_top = k;
    seen->is_measured = is_measured;
#pragma omp parallel num_threads(seen->num_threads) if (is_shared) reduction(|| : has_nan)
    {
        finds mine = {seen->heap + (int64_t)k * THREAD, 0, 0, k};
#pragma omp for schedule(dynamic)
        for (int32_t first = 0; first < num_vocab; first += CHUNK) {
            int32_t last = num_vocab - first < CHUNK ? num_vocab : first + CHUNK;
            uint64_t known = __atomic_load_n(&least, __ATOMIC_RELAXED);
            mine.least = mine.least > known ? mine.least : known;
            has_nan = !find_best(&mine, row, first, last) || has_nan;
            raise_to(&least, mine.least);
            if (is_measured) measure(seen->parts + first / CHUNK, row + first, last - first);
        }
#pragma omp for ordered schedule(static, 1)
        for (int32_t thread = 0; thread < NUM_THREADS; thread++) {
#pragma omp ordered
            for (int32_t i = 0; i < mine.num; i++)
                if (mine.keys[i] >= least) seen->heap[num_keys++] = mine.keys[i];
        }
    }
    if (has_nan) return false;
    list_top(seen, row, num_keys, k);
    if (!isfinite(seen->top[0].logit)) return false;
    if (is_measured) sum_up(seen, seen->top[0].logit);
    return true;
}

/* Return the rank of a logit: 1 + the number of larger logits. */
static int32_t rank_of(const look *seen, const float *row, float logit) {
    int32_t num_larger = 0;
    if (logit >= seen->top[seen->num_top - 1].logit)
        while (seen->top[num_larger].logit > logit) num_larger++;
    else
        for (int32_t id = 0; id < seen->num_vocab; id++) num_larger += row[id] > logit;
    return 1 + num_larger;
}

/* Write k candidates as three columns: ids, logprobs, and probabilities just before the draw, which are NaN if nothing
   was drawn. If the vocabulary is smaller than k, the remaining rows are -1, 0 and 0. */
static void write_candidates(const look *seen, const candidates *drawn, int32_t k, int32_t *ids) {
    float *logprobs = (float *)(ids + k), *p_finals = logprobs + k;
    int32_t num_ids = k < seen->num_top ? k : seen->num_top;
    for (int32_t i = 0; i < num_ids; i++) seen->p_by_id[seen->top[i].id] = drawn ? 0 : NAN;
    for (size_t i = 0; drawn && i < drawn->size; i++) seen->p_by_id[drawn->data[i].id] = drawn->data[i].p;
    for (int32_t i = 0; i < num_ids; i++) {
        ids[i] = seen->top[i].id;
        logprobs[i] = (float)(seen->top[i].logit - seen->normaliser);
        p_finals[i] = seen->p_by_id[ids[i]];
    }
    for (int32_t i = num_ids; i < k; i++) {
        ids[i] = -1;
        logprobs[i] = p_finals[i] = 0;
    }
}

/* Probability of a token among the candidates that survived the samplers: that of the drawn one, or of a forced one. */
static float p_of(const candidates *drawn, int32_t token) {
    if (drawn->data[drawn->selected].id == token) return drawn->data[drawn->selected].p;
    for (size_t i = 0; i < drawn->size; i++)
        if (drawn->data[i].id == token) return drawn->data[i].p;
    return 0;
}

/* Write the step that chose `token` on a row: a record, and k candidates after it if the row was measured. `drawn`: the
   candidates that survived the samplers, or NULL. */
void write_step(const look *seen, const float *row, const candidates *drawn, int32_t token, int32_t k, double draw,
                double elapsed_s, int32_t flags, record *out) {
    *out = (record){token, 0, NAN, NAN, NAN, NAN, draw, elapsed_s, flags, 0};
    for (size_t i = 0; drawn && i < drawn->size; i++) out->num_kept += drawn->data[i].p > 0;
    if (!seen->is_measured) return;
    out->rank = rank_of(seen, row, row[token]);
    out->logprob = row[token] - seen->normaliser;
    out->entropy = seen->entropy;
    out->normaliser = seen->normaliser;
    if (drawn) out->p_final = p_of(drawn, token);
    write_candidates(seen, drawn, k, (int32_t *)(out + 1));
}

/* Write two columns of the watched words: the log of the summed probability of a word's tokens, and the rank of the best
   of them. Each has its ids at `ids`, up to before its place in `ends`. */
void write_watched(const look *seen, const float *row, const int32_t *ids, const int32_t *ends, int32_t num_words,
                   double *logprobs) {
    int32_t *ranks = (int32_t *)(logprobs + num_words);
    for (int32_t word = 0, first = 0; word < num_words; first = ends[word++]) {
        float best = -INFINITY;
        double total = 0;
        for (int32_t i = first; i < ends[word]; i++) best = row[ids[i]] > best ? row[ids[i]] : best;
        for (int32_t i = first; i < ends[word] && best > -INFINITY; i++) total += exp((double)row[ids[i]] - best);
        logprobs[word] = best + log(total) - seen->normaliser;
        ranks[word] = rank_of(seen, row, best);
    }
}

enum { MAX_STAGES = 16, MAX_RECORDED = 1024 };

/* What the stages of a sampler chain leave of a row: after each its candidates and their probability in the model's own
   distribution; and of each of the row's best tokens the stage that cut it, counted from 1, or 0 if none did. */
typedef struct {
    int32_t num, num_top, last_size;
    int32_t kept[MAX_STAGES];
    float mass[MAX_STAGES];
    uint8_t cut[MAX_RECORDED];
} stages;

/* Begin with no stage, which leaves all tokens. `k`: how many of the best tokens are followed. */
void begin_stages(const look *seen, int32_t k, stages *out) {
    *out = (stages){.num_top = k < seen->num_top ? k : seen->num_top, .last_size = seen->num_vocab};
}

static void add_stage(stages *out, int32_t kept, double mass) {
    out->kept[out->num] = kept;
    out->mass[out->num++] = (float)(mass < 1 ? mass : 1);
}

/* Add a stage that bans these tokens, which earlier stages have left. */
void mark_banned(const look *seen, const float *row, const int32_t *banned, int32_t num_banned, stages *out) {
    double mass = out->num ? out->mass[out->num - 1] : 1;
    int32_t kept = out->num ? out->kept[out->num - 1] : seen->num_vocab;
    for (int32_t j = 0; j < num_banned; j++) {
        mass -= exp(row[banned[j]] - seen->normaliser);
        for (int32_t i = 0; i < out->num_top; i++)
            if (seen->top[i].id == banned[j]) out->cut[i] = out->num + 1;
    }
    add_stage(out, kept - num_banned, mass > 0 ? mass : 0);
}

/* Add a stage that has left these candidates; one with a logit of -inf is none. A stage that has removed no row has cut
   nothing, unless it `may_forbid` tokens by their logits. */
void mark_stage(const look *seen, const float *row, const candidates *left, bool may_forbid, stages *out) {
    if (!may_forbid && (int32_t)left->size == out->last_size) {
        mark_banned(seen, row, NULL, 0, out);
        return;
    }
    double mass = 0;
    int32_t kept = 0;
    for (int32_t i = 0; i < out->num_top; i++) seen->p_by_id[seen->top[i].id] = 0;
    for (size_t i = 0; i < left->size; i++) {
        if (left->data[i].logit == -INFINITY) continue;
        mass += exp(row[left->data[i].id] - seen->normaliser);
        seen->p_by_id[left->data[i].id] = 1;
        kept++;
    }
    for (int32_t i = 0; i < out->num_top; i++)
        if (!out->cut[i] && !seen->p_by_id[seen->top[i].id]) out->cut[i] = out->num + 1;
    out->last_size = left->size;
    add_stage(out, kept, mass);
}

/* Write the stages as three columns: candidates left and their probability after each, and for each of k candidates the
   stage that cut it. */
void write_stages(const stages *found, int32_t k, int32_t *out) {
    memcpy(out, found->kept, found->num * sizeof *out);
    memcpy(out + found->num, found->mass, found->num * sizeof *out);
    memcpy(out + 2 * found->num, found->cut, k);
}

static candidate *emptied(candidates *out, bool is_sorted) {
    *out = (candidates){out->room, 0, -1, is_sorted, out->room};
    return out->room;
}

/* List every token of a row as a candidate, in the order of ids. */
void list_all(const float *row, int32_t num_vocab, candidates *out) {
    candidate *listed = emptied(out, false);
    for (int32_t id = 0; id < num_vocab; id++) listed[id] = (candidate){id, row[id], 0};
    out->size = num_vocab;
}

/* List those of the `num_best` best tokens that are not banned, best first. Returns false if none finite is left. */
bool list_best(const look *seen, int32_t num_best, const int32_t *banned, int32_t num_banned, candidates *out) {
    candidate *listed = emptied(out, true);
    for (int32_t i = 0; i < num_best; i++) {
        bool is_banned = false;
        for (int32_t j = 0; j < num_banned; j++) is_banned |= seen->top[i].id == banned[j];
        listed[out->size] = seen->top[i];
        out->size += !is_banned;
    }
    return out->size && isfinite(listed[0].logit);
}

/* Return the token that the samplers have drawn. */
int32_t token_of(const candidates *drawn) {
    return drawn->data[drawn->selected].id;
}
