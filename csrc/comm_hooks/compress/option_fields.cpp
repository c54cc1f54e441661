#include "comm_hooks/compress/option_fields.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <type_traits>

#include "base/error.h"

namespace q7x2 {
namespace {

std::string text(double number) {
  std::ostringstream out;
  out << number;
  return out.str();
}

}  // namespace

void OptionField::check(const OptionValue& value) const {
  std::visit(
      [this](const auto& given) {
        using T = std::decay_t<decltype(given)>;
        if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
          const auto number = static_cast<double>(given);
          std::string expected;
          if (!std::isfinite(number)) {
            expected = "be finite";
          } else if (number <= range.above) {
            expected = "be more than " + text(range.above);
          } else if (number < range.least) {
            expected = range.least == 0 ? "not be negative" : "be at least " + text(range.least);
          } else if (number > range.most) {
            expected = "be at most " + text(range.most);
          }
          if (!expected.empty()) {
            throw Error(ErrorCode::kInvalidArgument,
                        name + " must " + expected + ", got " + text(number));
          }
        }
      },
      value);
}

const OptionField& find_field(const std::vector<OptionField>& fields, const std::string& owner,
                              const std::string& name) {
  const auto found = std::ranges::find(fields, name, &OptionField::name);
  if (found != fields.end()) return *found;
  std::string names;
  for (const OptionField& field : fields) names += (names.empty() ? "" : ", ") + field.name;
  throw Error(ErrorCode::kInvalidArgument,
              owner + " has no option '" + name + "': expected one of " + names);
}

}  // namespace q7x2
