#include "plan/plan_book.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "base/digest.h"
#include "base/error.h"
#include "plan/contest.h"
#include "plan/generators.h"

namespace q7x2 {
namespace {

constexpr size_t kMostPages = 1024;
constexpr uint32_t kMagic = 0x71377832;  // "q7x2"
constexpr uint32_t kFormat = 1;

// The wire form. Texts end with a null byte.
struct Publication {
  uint32_t magic = kMagic;
  uint32_t format = kFormat;
  uint64_t digest = 0;
  uint64_t slice_bytes = 0;
  uint64_t part_bytes = 0;
  double seconds = 0;
  int32_t window = 0;
  uint32_t edges = 0;  ///< see Plan::edges
  char algorithm[192] = {};
  char environment[248] = {};
  uint64_t check = 0;  ///< see check_of
};
static_assert(sizeof(Publication) <= PlanBook::kBytes);
static_assert(std::is_trivially_copyable_v<Publication>);

/// Of all the rest.
uint64_t check_of(Publication publication) {
  publication.check = 0;
  Digest digest;
  digest.add_all(std::span(reinterpret_cast<const uint8_t*>(&publication), sizeof(publication)));
  return digest.value();
}

template <size_t kSize>
void put(char (&place)[kSize], const std::string& text) {
  std::memcpy(place, text.data(), std::min(text.size(), kSize - 1));
}

Choice courier_choice(int rank, int world_size) {
  for (const Generator& generator : generators()) {
    if (generator.name != "binomial_tree" || generator.collective != Collective::kBroadcast) {
      continue;
    }
    // By rank alone, so that it depends on nothing that ranks could disagree about.
    const Schedule schedule = generator.generate({Collective::kBroadcast, world_size, 0});
    return {std::make_shared<const Plan>(schedule.project(rank)), PlanBook::kBytes,
            PlanBook::kBytes, 1, 0};
  }
  throw Error(ErrorCode::kInternal, "no algorithm broadcasts choices");
}

}  // namespace

PlanBook::PlanBook(std::shared_ptr<Planner> planner, int rank, int world_size,
                   const std::string& environment)
    : planner_(std::move(planner)),
      rank_(rank),
      world_size_(world_size),
      environment_(environment),
      courier_(std::make_shared<Page>(CallShape{Collective::kBroadcast, kBytes, 0})),
      pages_(kMostPages) {
  settle(*courier_, courier_choice(rank, world_size));
  courier_->announce();
}

void PlanBook::settle(Page& page, Choice choice) {
  page.choice_ = std::move(choice);
  page.is_settled_.store(true, std::memory_order_release);
}

std::shared_ptr<PlanBook::Page> PlanBook::find(const CallShape& shape, bool alone) {
  const std::lock_guard lock(mutex_);
  const Key key{key_of(shape), alone};
  if (const std::shared_ptr<Page>* known = pages_.find(key)) return *known;
  auto page = std::make_shared<Page>(shape);
  if (alone || rank_ == 0) {
    settle(*page, planner_->choose(shape));
  } else {
    planner_->check(page->shape_);
  }
  if (alone || world_size_ == 1) page->announce();
  return pages_.add(key, std::move(page));
}

std::shared_ptr<PlanBook::Page> PlanBook::open(const CallShape& shape) {
  return find(shape, false);
}

std::shared_ptr<PlanBook::Page> PlanBook::open_alone(const CallShape& shape) {
  return find(shape, true);
}

void PlanBook::publish(const Page& page, std::span<std::byte> bytes) const {
  const Choice& choice = page.choice();
  Publication publication;
  if (choice.plan->algorithm.size() >= sizeof(publication.algorithm)) {
    throw Error(ErrorCode::kInternal,
                "the name of an algorithm is too long: " + choice.plan->algorithm);
  }
  publication.digest =
      planner_->schedule(page.shape_, choice.plan->algorithm, choice.plan->edges)->digest();
  publication.slice_bytes = choice.slice_bytes;
  publication.part_bytes = choice.part_bytes;
  publication.seconds = choice.seconds;
  publication.window = choice.window;
  publication.edges = static_cast<uint32_t>(choice.plan->edges);
  put(publication.algorithm, choice.plan->algorithm);
  put(publication.environment, environment_);
  publication.check = check_of(publication);
  std::ranges::fill(bytes, std::byte{0});
  std::memcpy(bytes.data(), &publication, sizeof(publication));
}

void PlanBook::settle(Page& page, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  if (page.is_settled()) return;
  Publication publication;
  std::memcpy(&publication, bytes.data(), std::min(bytes.size(), sizeof(publication)));
  if (bytes.size() != kBytes || publication.magic != kMagic || publication.format != kFormat ||
      publication.check != check_of(publication) ||
      publication.algorithm[sizeof(publication.algorithm) - 1] != 0 ||
      publication.environment[sizeof(publication.environment) - 1] != 0) {
    throw Error(ErrorCode::kInternal, "rank 0's choice for a collective cannot be read", 0);
  }
  const std::string algorithm = publication.algorithm;
  const std::string environment = publication.environment;
  Choice choice;
  choice.slice_bytes = publication.slice_bytes;
  choice.part_bytes = publication.part_bytes;
  choice.window = publication.window;
  choice.seconds = publication.seconds;
  const bool is_sound = choice.slice_bytes > 0 && choice.slice_bytes % 64 == 0 &&
                        choice.part_bytes > 0 && choice.part_bytes % 64 == 0 &&
                        choice.window >= 1 && choice.window <= Choice::kMaxWindow &&
                        publication.edges <= static_cast<uint32_t>(Edges::kAll);
  const auto schedule =
      is_sound ? planner_->schedule(page.shape_, algorithm, static_cast<Edges>(publication.edges))
               : nullptr;
  if (!schedule || schedule->digest() != publication.digest) {
    const std::string found = schedule ? "makes another Schedule of it" : "does not know it";
    throw Error(ErrorCode::kMismatch,
                "rank 0 has chosen " + algorithm + " for " + to_string(page.shape_.collective) +
                    ", but rank " + std::to_string(rank_) + " " + found + ": rank 0 runs " +
                    environment + ", rank " + std::to_string(rank_) + " runs " + environment_,
                0);
  }
  choice.plan = std::make_shared<const Plan>(schedule->project(rank_));
  settle(page, std::move(choice));
}

void PlanBook::clear() {
  const std::lock_guard lock(mutex_);
  pages_.clear();
}

}  // namespace q7x2
