#include "format.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include "base/error.h"

namespace q7x2::fuzz {
namespace {

constexpr size_t kPool = 64;  // inputs that are changed further
constexpr size_t kLongest = 1 << 16;

class Mutator {
 public:
  Mutator(const Format& format, Random& random) : format_(format), random_(random) {}

  std::string next() {
    const uint64_t kind = random_() % 16;
    if (kind == 0) return format_.example(random_);
    std::string input = kind < 8 || pool_.empty() ? format_.example(random_) : any_of(pool_);
    if (kind == 1) {  // noise behind a right beginning
      for (size_t i = position(input); i < input.size(); ++i) {
        input[i] = static_cast<char>(random_());
      }
      return input;
    }
    if (kind == 15) return input;  // what was accepted before
    for (uint64_t changes = 1 + random_() % 4; changes > 0; --changes) change(input);
    if (input.size() > kLongest) input.resize(kLongest);
    return input;
  }

  void keep(std::string input) {
    if (pool_.size() < kPool) {
      pool_.push_back(std::move(input));
    } else if (random_() % 8 == 0) {
      pool_[random_() % kPool] = std::move(input);
    }
  }

 private:
  const std::string& any_of(const std::vector<std::string>& texts) {
    return texts[random_() % texts.size()];
  }

  // Changes of the beginning, which mostly says how the rest is read, are as likely as all others.
  size_t position(const std::string& input) {
    const size_t range = random_() % 2 == 0 ? std::min<size_t>(input.size(), 40) : input.size();
    return range == 0 ? 0 : random_() % range;
  }

  void change(std::string& input) {
    const size_t at = position(input);
    const size_t length = random_() % 2 == 0 ? random_() % 9 : random_() % (input.size() + 1);
    switch (random_() % (format_.words.empty() ? 9 : 12)) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(input[at] ^ 1 << random_() % 8);
        break;
      case 1:
        if (!input.empty()) input[at] = static_cast<char>(random_());
        break;
      case 2:
        input.resize(random_() % (input.size() + 1));
        break;
      case 3:
        input.resize(input.size() + random_() % 9);
        break;
      case 4:
        input.erase(at, length);
        break;
      case 5:
        input.insert(at, input.substr(position(input), length));
        break;
      case 6:
        put_number<uint32_t>(input, at);
        break;
      case 7:
        put_number<uint64_t>(input, at);
        break;
      case 8: {
        const std::string other = format_.example(random_);
        input.replace(at, length, other, position(other), length);
        break;
      }
      case 9:
        input.insert(at, any_of(format_.words));
        break;
      case 10:
        input.replace(at, length, any_of(format_.words));
        break;
      default:
        replace_word(input);
    }
  }

  // Numbers at which arithmetic goes wrong.
  template <typename Number>
  void put_number(std::string& input, size_t at) {
    const std::array<Number, 8> numbers{0,
                                        1,
                                        static_cast<Number>(-1),
                                        static_cast<Number>(Number{1} << (8 * sizeof(Number) - 1)),
                                        static_cast<Number>(input.size()),
                                        static_cast<Number>(input.size() + 1),
                                        static_cast<Number>(random_() % 300),
                                        static_cast<Number>(random_())};
    const Number number = numbers[random_() % numbers.size()];
    if (at + sizeof(number) > input.size()) return;
    std::memcpy(input.data() + at, &number, sizeof(number));
  }

  void replace_word(std::string& input) {
    const std::string& word = any_of(format_.words);
    const size_t at = input.find(word, position(input));
    if (at != std::string::npos) input.replace(at, word.size(), any_of(format_.words));
  }

  const Format& format_;
  Random& random_;
  std::vector<std::string> pool_;
};

std::string shown(const std::string& input) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : input) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

Tally run(const Format& format, uint64_t seed, size_t inputs) {
  Random random(seed);
  Mutator mutator(format, random);
  Tally tally;
  for (size_t i = 0; i < inputs; ++i) {
    std::string input = mutator.next();
    const std::unique_ptr<char[]> exact(new char[input.size()]);
    input.copy(exact.get(), input.size());
    bool accepted = false;
    try {
      accepted = format.read({exact.get(), input.size()}, random);
    } catch (const Error&) {
    } catch (const std::exception& error) {
      throw std::logic_error(format.name + ": " + error.what() + ", for the input " + shown(input));
    }
    if (accepted) {
      ++tally.accepted;
      mutator.keep(std::move(input));
    } else {
      ++tally.refused;
    }
  }
  return tally;
}

std::vector<Format> formats() {
  std::vector<Format> all;
  for (auto* const of_file : {peer_info_formats, record_formats, control_formats, proof_formats,
                              letter_formats, stream_formats, bootstrap_message_formats,
                              codec_formats, fabric_formats, plan_formats, row_formats}) {
    std::ranges::move(of_file(), std::back_inserter(all));
  }
  return all;
}

}  // namespace q7x2::fuzz
