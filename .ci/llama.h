// Put before every C++ source of llama.cpp: what the compiler has to know about newer x86 processors.
#pragma once

// Signs the libraries, so that timings tell builds with this header from others: count up when arithmetic changes.
#if defined(__ELF__)
__asm__(".ident \"Logitbench llama.h 2\"");
#endif

// The products of repacked weights need more registers than there are. GCC orders instructions before it allocates
// registers only when told to, and moves common values out of loops until they are spilt; told this, it makes them 1.2
// to 1.5 times as fast, as Clang does (docs/decisions/0008-compilers.md).
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __has_include("simd-mappings.h")
#pragma GCC optimize("schedule-insns", "sched-pressure", "no-gcse")
#endif

// GCC's own macros do not tell it that these AMX instructions read memory, so it may leave out the stores before them,
// and batches crash or come out wrong: versions before 13.3 lose the tile configuration (its bug 114098).
#if defined(__AMX_TILE__) && !defined(__clang__)
#include <immintrin.h>

#undef _tile_loadd
#undef _tile_loadconfig
#define _tile_loadd(tile, base, stride) AMX_LOAD(tile, base, stride)
#define AMX_LOAD(tile, base, stride)                           \
    __asm__ volatile("tileloadd\t(%0,%1,1), %%tmm" #tile       \
                     :                                         \
                     : "r"((const void *)(base)), "r"((long)(stride)) \
                     : "memory")
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg\t%0" : : "m"(*(const char(*)[64])(config)) : "memory")
#endif

// With AVX-512 FP16 flash attention adds up values 128 at a time and what is left one by one: all of a head of 64, which
// makes long texts half as fast. 32 are one register.
#if defined(__AVX512FP16__) && __has_include("simd-mappings.h")
#include "simd-mappings.h"

#undef GGML_F16_STEP
#define GGML_F16_STEP 32
#endif
