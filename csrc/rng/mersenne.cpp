#include "rng/mersenne.hpp"

#include <algorithm>

namespace fusionloader {
namespace {

constexpr size_t kWords = std::tuple_size_v<MersenneWords>;

// One word of each state; loops over the states become vector instructions.
template <size_t states>
using Lanes = uint32_t[states];
template <size_t states>
using Columns = Lanes<states>[kWords];

inline uint32_t spread(uint32_t word) { return word ^ (word >> 30); }

constexpr uint32_t next_by_number(uint32_t word, size_t place) {
  return 1812433253u * (word ^ (word >> 30)) + static_cast<uint32_t>(place);
}

// Where init_by_array() begins.
constexpr MersenneWords begin_by_key() {
  MersenneWords words{19650218u};
  for (size_t place = 1; place < kWords; ++place)
    words[place] = next_by_number(words[place - 1], place);
  return words;
}
constexpr MersenneWords kBegin = begin_by_key();

template <size_t states>
void fill_by_number(const uint64_t* seeds, Columns<states>& columns) {
  Lanes<states> word;
  for (size_t i = 0; i < states; ++i) columns[0][i] = word[i] = static_cast<uint32_t>(seeds[i]);
  for (size_t place = 1; place < kWords; ++place)
    for (size_t i = 0; i < states; ++i)
      columns[place][i] = word[i] = next_by_number(word[i], place);
}

template <size_t states>
void fill_by_key(const uint64_t* seeds, Columns<states>& columns) {
  // The words of the key in turn, each with its number added. A short seed is a key of one word.
  Lanes<states> key[2], word;
  for (size_t i = 0; i < states; ++i) {
    const auto low = static_cast<uint32_t>(seeds[i]), high = static_cast<uint32_t>(seeds[i] >> 32);
    key[0][i] = low;
    key[1][i] = high == 0 ? low : high + 1;
    word[i] = kBegin[0];
  }
  for (size_t place = 1; place < kWords; ++place) {
    const Lanes<states>& add = key[(place - 1) % 2];
    for (size_t i = 0; i < states; ++i)
      columns[place][i] = word[i] = (kBegin[place] ^ (spread(word[i]) * 1664525u)) + add[i];
  }
  const Lanes<states>& last = key[(kWords - 1) % 2];
  for (size_t i = 0; i < states; ++i)
    columns[1][i] = word[i] = (columns[1][i] ^ (spread(word[i]) * 1664525u)) + last[i];
  for (size_t step = 2; step <= kWords; ++step) {
    const size_t place = step == kWords ? 1 : step;  // the last word is followed by the first
    for (size_t i = 0; i < states; ++i)
      columns[place][i] = word[i] =
          (columns[place][i] ^ (spread(word[i]) * 1566083941u)) - static_cast<uint32_t>(place);
  }
  for (size_t i = 0; i < states; ++i) columns[0][i] = 0x80000000u;
}

template <size_t states>
void transpose(const Columns<states>& columns, MersenneWords* to) {
  constexpr size_t block = 16;
  static_assert(kWords % block == 0);
  for (size_t begin = 0; begin < kWords; begin += block)
    for (size_t i = 0; i < states; ++i)
      for (size_t place = begin; place < begin + block; ++place) to[i][place] = columns[place][i];
}

template <size_t states>
void fill_states(const uint64_t* seeds, MersenneWords* by_number, MersenneWords* by_key) {
  Columns<states> columns;
  if (by_number != nullptr) {
    fill_by_number<states>(seeds, columns);
    transpose<states>(columns, by_number);
  }
  if (by_key != nullptr) {
    fill_by_key<states>(seeds, columns);
    transpose<states>(columns, by_key);
  }
}

inline uint32_t twist(uint32_t word, uint32_t next) {
  const uint32_t mixed = (word & 0x80000000u) | (next & 0x7fffffffu);
  return (mixed >> 1) ^ ((next & 1u) != 0 ? 0x9908b0dfu : 0u);
}

}  // namespace

void turn(MersenneWords& words) {
  constexpr size_t ahead = 397, behind = kWords - ahead;
  for (size_t i = 0; i < behind; ++i) words[i] = words[i + ahead] ^ twist(words[i], words[i + 1]);
  for (size_t i = behind; i + 1 < kWords; ++i)
    words[i] = words[i - behind] ^ twist(words[i], words[i + 1]);
  words.back() = words[ahead - 1] ^ twist(words.back(), words.front());
}

void SeededWords::fill(const uint64_t* seeds, size_t count, bool by_number, bool by_key) {
  std::array<uint64_t, most> all{};
  std::copy_n(seeds, count, all.begin());
  const auto fill_some = count == 1   ? fill_states<1>
                         : count <= 4 ? fill_states<4>
                                      : fill_states<most>;
  fill_some(all.data(), by_number ? by_number_.data() : nullptr, by_key ? by_key_.data() : nullptr);
}

}  // namespace fusionloader
