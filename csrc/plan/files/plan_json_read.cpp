#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "fabric/json_fields.h"
#include "plan/check/checker.h"
#include "plan/cost/plan_rounds.h"
#include "plan/files/plan_json.h"
#include "plan/files/plan_json_format.h"

namespace q7x2 {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr int kMaxRanks = 256;
// The time for the proof grows with the square of a rank's ops.
constexpr size_t kMaxOpsOfARank = 1 << 13;
constexpr size_t kMaxOps = 1 << 19;
constexpr size_t kMaxParts = 1 << 17;  // total of all ranks
// The bytes of a slice are a multiple of 64 times the sum of the weights.
constexpr int kMaxWeights = 1 << 13;
constexpr int kMaxIndex = 0xfffe;
constexpr size_t kMaxName = 64;

/// An op as given in the text.
struct TextOp {
  OpKind kind = OpKind::kCopy;
  int peer = -1;
  std::vector<Block> sources;
  Block destination;
  bool is_final = false;
  std::optional<int> message;
  std::optional<Block> length_of;
  std::vector<uint32_t> after;
};

[[noreturn]] void fail(const Place& place, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument,
              (place.path().empty() ? "" : place.path() + ": ") + what);
}

/// The items of an array, of which there are at most `most`.
template <typename Read>
auto read_list(const Place& place, size_t most, const Read& read) {
  if (place.value().is_array() && place.value().size() > most) {
    fail(place, "expected at most " + std::to_string(most) + " items, got " +
                    std::to_string(place.value().size()));
  }
  return place.list(read);
}

int read_int(const Place& place, int least, int most) {
  return static_cast<int>(place.whole(least, most));
}

/// An optional field.
template <typename Read>
auto find(Fields& fields, const std::string& name, const Read& read) {
  std::optional<std::invoke_result_t<Read, const Place&>> found;
  fields.optional(name, found, read);
  return found;
}

// The name appears in messages and in lists of names.
std::string read_name(const Place& place) {
  std::string name = place.text();
  const bool is_word = name.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                           "0123456789_.:-") == std::string::npos;
  if (name.empty() || name.size() > kMaxName || !is_word) {
    place.complain("a name of letters, digits and _ . : -, at most " + std::to_string(kMaxName));
  }
  return name;
}

Block read_block(const Place& place) {
  const std::string text = place.text();
  const size_t open = text.find('[');
  if (open != std::string::npos && text.back() == ']') {
    const std::string digits = text.substr(open + 1, text.size() - open - 2);
    const bool is_number = !digits.empty() && digits.size() <= 5 &&
                           digits.find_first_not_of("0123456789") == std::string::npos;
    for (const auto& [name, space] : kSpaceNames) {
      if (!is_number || text.substr(0, open) != name || std::stoi(digits) > kMaxIndex) continue;
      return {space, static_cast<uint16_t>(std::stoi(digits))};
    }
  }
  place.complain("a block such as \"in[0]\", \"out[3]\" or \"scratch[1]\"");
}

int read_peer(const Place& place, int rank, int world_size) {
  const int peer = read_int(place, 0, world_size - 1);
  if (peer == rank) place.complain("another rank");
  return peer;
}

std::vector<Block> read_blocks(const Place& place) {
  return read_list(place, kMaxIndex, read_block);
}

/// Reads the fields that give the kind of the op.
void read_kind(Fields& fields, const Place& place, int rank, int world_size, TextOp& op) {
  const auto send = find(fields, "send", read_block);
  const auto recv = find(fields, "recv", read_block);
  const auto copy = find(fields, "copy", read_block);
  auto reduce = find(fields, "reduce", read_blocks);
  if (send.has_value() + recv.has_value() + copy.has_value() + reduce.has_value() != 1) {
    place.complain("one of \"send\", \"recv\", \"copy\" and \"reduce\"");
  }
  if (send) {
    op.kind = OpKind::kSend;
    op.sources = {*send};
    op.peer = read_peer(fields.required("to"), rank, world_size);
  } else if (recv) {
    op.kind = OpKind::kRecv;
    op.destination = *recv;
    op.peer = read_peer(fields.required("from"), rank, world_size);
  } else {
    op.kind = copy ? OpKind::kCopy : OpKind::kReduce;
    op.sources = copy ? std::vector{*copy} : std::move(*reduce);
    op.destination = read_block(fields.required("into"));
  }
}

TextOp read_op(const Place& place, int rank, int world_size, size_t id) {
  TextOp op;
  Fields fields(place);
  read_kind(fields, place, rank, world_size, op);
  if (op.kind == OpKind::kReduce) fields.optional("final", op.is_final, &Place::flag);
  if (op.peer >= 0) {
    op.message = find(fields, "message", [](const Place& message) {
      return read_int(message, 0, Plan::kMaxMessages - 1);
    });
  }
  op.length_of = find(fields, "length", [](const Place& length) {
    const Block block = read_block(length);
    if (!block.is_part()) length.complain("a part of the input or the output");
    return block;
  });
  if (!op.length_of && !usual_length(op.kind, op.sources, op.destination)) {
    fail(place, "has scratch blocks alone: \"length\" must name the part that they are as long as");
  }
  fields.optional("after", op.after, [id](const Place& after) {
    return read_list(after, kMaxOpsOfARank, [id](const Place& before) {
      if (id == 0) fail(before, "the first op has no op before it");
      return static_cast<uint32_t>(read_int(before, 0, static_cast<int>(id) - 1));
    });
  });
  fields.end();
  return op;
}

std::vector<TextOp> read_plan(const Place& place, int rank, int world_size) {
  std::vector<TextOp> ops;
  read_list(place, kMaxOpsOfARank, [&](const Place& each) {
    ops.push_back(read_op(each, rank, world_size, ops.size()));
    return 0;
  });
  return ops;
}

/// Numbers the messages that have no number in the text: those from one rank to another get, in
/// order, the numbers that neither end has used. So the k-th unnumbered send matches the k-th
/// unnumbered receive, and never a numbered one.
void number_messages(std::vector<std::vector<TextOp>>& plans) {
  using Pair = std::pair<int, int>;  // from, to
  const auto pair_of = [](int rank, const TextOp& op) {
    return op.kind == OpKind::kSend ? Pair{rank, op.peer} : Pair{op.peer, rank};
  };
  std::map<Pair, std::set<int>> named;
  for (int rank = 0; rank < static_cast<int>(plans.size()); ++rank) {
    for (const TextOp& op : plans[static_cast<size_t>(rank)]) {
      if (op.message) named[pair_of(rank, op)].insert(*op.message);
    }
  }
  for (int rank = 0; rank < static_cast<int>(plans.size()); ++rank) {
    std::map<std::pair<OpKind, int>, int> next;  // by direction and peer
    std::vector<TextOp>& ops = plans[static_cast<size_t>(rank)];
    for (size_t id = 0; id < ops.size(); ++id) {
      TextOp& op = ops[id];
      if (op.peer < 0 || op.message) continue;
      int& number = next[{op.kind, op.peer}];
      const std::set<int>& taken = named[pair_of(rank, op)];
      while (taken.contains(number)) ++number;
      if (number >= Plan::kMaxMessages) {
        throw Error(ErrorCode::kInvalidArgument,
                    "plans[" + std::to_string(rank) + "][" + std::to_string(id) + "]: more than " +
                        std::to_string(Plan::kMaxMessages) + " messages between two ranks");
      }
      op.message = number++;
    }
  }
}

std::vector<int> read_ranks(const Place& place, int world_size) {
  return read_list(place, static_cast<size_t>(world_size),
                   [&](const Place& each) { return read_int(each, 0, world_size - 1); });
}

Contract read_contract(const Place& place, int world_size) {
  Contract contract;
  Fields fields(place);
  contract.contributors = read_ranks(fields.required("contributors"), world_size);
  contract.receivers = read_ranks(fields.required("receivers"), world_size);
  contract.quorum = read_int(fields.required("quorum"), 1, world_size);
  fields.end();
  return contract;
}

std::vector<uint32_t> read_weights(const Place& place) {
  const std::vector<uint32_t> weights = read_list(place, kMaxWeights, [](const Place& each) {
    return static_cast<uint32_t>(read_int(each, 1, kMaxWeights));
  });
  const uint64_t sum = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  if (sum == 0 || sum > kMaxWeights) {
    place.complain("weights whose sum is 1 to " + std::to_string(kMaxWeights));
  }
  return weights;
}

/// The contents of a text, with another name for the algorithm.
struct Text {
  ScheduleRequest request;
  std::string algorithm;
  std::vector<uint32_t> part_weights{1};
  std::optional<Contract> contract;
  bool rounds_once = false;
  std::shared_ptr<std::vector<std::vector<TextOp>>> plans =
      std::make_shared<std::vector<std::vector<TextOp>>>();

  Schedule schedule(const std::string& name) const {
    Schedule schedule(request, name, part_weights);
    if (contract) schedule.set_contract(*contract);
    if (rounds_once) schedule.set_rounds_once();
    schedule.set_program([ops = plans](PlanBuilder& b, int rank) {
      for (const TextOp& op : (*ops)[static_cast<size_t>(rank)]) {
        switch (op.kind) {
          case OpKind::kSend:
            b.send(op.peer, op.sources[0], op.after, op.length_of, op.message);
            break;
          case OpKind::kRecv:
            b.recv(op.peer, op.destination, op.after, op.length_of, op.message);
            break;
          case OpKind::kCopy:
            b.copy(op.sources[0], op.destination, op.after, op.length_of);
            break;
          case OpKind::kReduce:
            b.reduce(op.sources, op.destination, op.is_final, op.after, op.length_of);
            break;
        }
      }
    });
    return schedule;
  }
};

Text read_text(const Place& place) {
  Text text;
  Fields fields(place);
  read_int(fields.required("format"), kPlanFormat, kPlanFormat);
  ScheduleRequest& request = text.request;
  request.collective = fields.required("collective").collective();
  request.world_size = read_int(fields.required("ranks"), 1, kMaxRanks);
  if (is_rooted(request.collective)) {
    request.root = read_int(fields.required("root"), 0, request.world_size - 1);
  }
  text.algorithm = read_name(fields.required("algorithm"));
  if (is_flat(request.collective)) {
    fields.optional("part_weights", text.part_weights, read_weights);
  }
  if (text.part_weights.size() * static_cast<size_t>(request.world_size) > kMaxParts) {
    fail(place, "too many parts for " + std::to_string(request.world_size) + " ranks");
  }
  text.contract = find(fields, "contract", [&](const Place& contract) {
    return read_contract(contract, request.world_size);
  });
  fields.optional("rounds_once", text.rounds_once, &Place::flag);
  const Place plans = fields.required("plans");
  size_t ops = 0;
  read_list(plans, static_cast<size_t>(request.world_size), [&](const Place& each) {
    const int rank = static_cast<int>(text.plans->size());
    text.plans->push_back(read_plan(each, rank, request.world_size));
    ops += text.plans->back().size();
    if (ops > kMaxOps) fail(each, "more than " + std::to_string(kMaxOps) + " ops of all ranks");
    return 0;
  });
  if (text.plans->size() != static_cast<size_t>(request.world_size)) {
    fail(plans, "expected a Plan for each of " + std::to_string(request.world_size) +
                    " ranks, got " + std::to_string(text.plans->size()));
  }
  fields.end();
  number_messages(*text.plans);
  return text;
}

std::string digest(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  std::array<char, 16> hex;
  std::snprintf(hex.data(), hex.size(), "%08x", static_cast<unsigned>(hash ^ hash >> 32));
  return hex.data();
}

}  // namespace

Schedule schedule_from_json(std::string_view json) {
  const Json value = parsed_json(json, kMaxBytes);
  const Text text = read_text(Place(value, ""));
  const Schedule plain = text.schedule(text.algorithm);
  Schedule schedule = text.schedule("file:" + text.algorithm + "@" + digest(to_json(plain)));
  const std::vector<Plan> plans = schedule.project_all();
  try {
    check_plans(plans, schedule.contract());
  } catch (const Error& error) {
    throw Error(ErrorCode::kInvalidArgument, error.what());
  }
  for (Round& round : rounds_of(plans)) schedule.add_round(std::move(round));
  int scratch = 0;
  for (const Plan& plan : plans) scratch = std::max<int>(scratch, plan.num_scratch);
  schedule.set_scratch_blocks(scratch);
  return schedule;
}

}  // namespace q7x2
