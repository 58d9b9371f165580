/// Every value type with a field list, by that list: written and read back it is equal; a missing, misspelt, mistyped or
/// out-of-range field is refused by name.

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "core/spec/cluster.hpp"
#include "core/spec/load.hpp"
#include "core/spec/plan.hpp"
#include "core/spec/profile.hpp"
#include "core/spec/runtime.hpp"
#include "core/spec/workload.hpp"
#include "core/write.hpp"

namespace moeplan {
namespace {

using Random = std::mt19937_64;

std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random); }

/// A value of `T` inside `range`.
template <class T>
T sample(Random& random, const Range& range = {}) {
  const double low = std::max(range.low, -1e6), high = std::min(range.high, 1e12);
  if constexpr (std::is_same_v<T, bool>) {
    return pick(random, 0, 1) != 0;
  } else if constexpr (std::is_integral_v<T>) {
    const auto max = static_cast<double>(std::numeric_limits<T>::max());
    return static_cast<T>(pick(random, static_cast<std::int64_t>(low) + range.open_low, static_cast<std::int64_t>(std::min(high, max))));
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::uniform_real_distribution<>(std::nextafter(low, high), high)(random);
  } else if constexpr (std::is_same_v<T, std::string>) {
    static const std::vector<std::string> texts{"", "h200", "a b'c\"d;$(x)", "line\nbreak\t\x1b", "\xc3\xa9\xe2\x82\xac", "back\\slash/"};
    return texts[static_cast<std::size_t>(pick(random, 0, 5))];
  } else if constexpr (NamedEnum<T>) {
    const auto& names = EnumNames<T>::names;
    return names[static_cast<std::size_t>(pick(random, 0, static_cast<std::int64_t>(names.size()) - 1))].first;
  } else if constexpr (detail::IsQuantity<T>::value) {
    return T{sample<typename T::Rep>(random, range)};
  } else if constexpr (detail::IsOptional<T>::value) {
    if (pick(random, 0, 1)) return std::nullopt;
    return sample<typename T::value_type>(random, range);
  } else if constexpr (detail::IsVector<T>::value) {
    T out;
    for (auto n = pick(random, 0, 3); n > 0; --n) out.push_back(sample<typename T::value_type>(random, range));
    return out;
  } else if constexpr (detail::IsMap<T>::value) {
    T out;
    for (auto n = pick(random, 0, 3); n > 0; --n) out["key " + std::to_string(n)] = sample<typename T::mapped_type>(random, range);
    return out;
  } else if constexpr (detail::IsVariant<T>::value) {
    T out;
    const auto chosen = static_cast<std::size_t>(pick(random, 0, std::variant_size_v<T> - 1));
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((I == chosen ? void(out = sample<std::variant_alternative_t<I, T>>(random)) : void()), ...);
    }(std::make_index_sequence<std::variant_size_v<T>>{});
    return out;
  } else {
    T out{};
    for_each_field<T>([&](const auto& f) { out.*(f.member) = sample<std::remove_cvref_t<decltype(out.*(f.member))>>(random, f.range); });
    return out;
  }
}

template <class T>
std::string refusal(const Json& json) {
  try {
    (void)read_document<T>(json, "f.json");
  } catch (const InputError& e) {
    return e.what();
  }
  return "read";
}

template <class T>
class Specs : public testing::Test {};
using All = testing::Types<DeviceSpec, LinkTier, NodeSpec, DeviceEntry, ClusterSpec, UniformLoad, ZipfLoad, LogNormalLoad, DirichletLoad, TraceLoad, LoadModel,
                           Parallelism, Plan, ProfileSample, PowerSample, PowerProfile, DeviceProfile, Runtime, Tuning, Workload>;
TYPED_TEST_SUITE(Specs, All);

TYPED_TEST(Specs, WrittenAndReadBackIsEqual) {
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const auto value = sample<TypeParam>(random);
    const std::string text = to_json(value).dump();
    const auto again = read_document<TypeParam>(parse_json(text, "f.json"), "f.json");
    ASSERT_EQ(again, value) << text;
    ASSERT_EQ(to_json(again).dump(), text) << "and to the byte";
  }
}

TYPED_TEST(Specs, AMissingRequiredFieldIsNamed) {
  Random random(2);
  for_each_field<TypeParam>([&](const auto& f) {
    Json json = to_json(sample<TypeParam>(random));
    json.erase(std::string(f.name));
    const std::string said = refusal<TypeParam>(json);
    if (f.is_required) EXPECT_NE(said.find(std::string(f.name) + ": is missing"), std::string::npos) << said;
    else EXPECT_EQ(said, "read");
  });
}

TYPED_TEST(Specs, AnUnknownFieldIsRefused) {
  Random random(3);
  Json json = to_json(sample<TypeParam>(random));
  json["nodez"] = 1;
  EXPECT_NE(refusal<TypeParam>(json).find("unknown field \"nodez\""), std::string::npos);
}

TYPED_TEST(Specs, AFieldOfTheWrongTypeIsNamed) {
  Random random(4);
  for_each_field<TypeParam>([&](const auto& f) {
    Json json = to_json(sample<TypeParam>(random));
    for (const char* wrong : {"[[[1]]]", "{\"zz\": [1]}"}) {
      json[std::string(f.name)] = Json::parse(wrong);
      const std::string said = refusal<TypeParam>(json);
      EXPECT_NE(said.find(std::string(f.name)), std::string::npos) << f.name << " = " << wrong << ": " << said;
      EXPECT_NE(said, "read") << f.name << " = " << wrong;
      EXPECT_EQ(said.find('\n'), std::string::npos);
    }
  });
}

/// A value of the JSON type that the field has, just outside its range.
template <class Member>
std::optional<Json> outside(const Range& range) {
  if constexpr (detail::IsOptional<Member>::value) {
    return outside<typename Member::value_type>(range);
  } else if constexpr (std::is_same_v<Member, bool>) {
    return std::nullopt;
  } else if constexpr (std::is_arithmetic_v<Member>) {
    if (std::isfinite(range.low)) return Json(static_cast<Member>(range.open_low ? range.low : range.low - 1));
    if (std::isfinite(range.high)) return Json(static_cast<Member>(range.high + 1));
    return std::nullopt;
  } else if constexpr (detail::IsQuantity<Member>::value) {
    if (std::isfinite(range.high)) return Json(exact_text(Member{static_cast<typename Member::Rep>(range.high * 2 + 1)}));
    return std::nullopt;
  } else {
    return std::nullopt;
  }
}

TYPED_TEST(Specs, AValueOutOfRangeIsNamedWithItsLimits) {
  Random random(5);
  for_each_field<TypeParam>([&](const auto& f) {
    using Member = std::remove_cvref_t<decltype(std::declval<TypeParam>().*(f.member))>;
    const auto wrong = outside<Member>(f.range);
    if (!wrong) return;
    Json json = to_json(sample<TypeParam>(random));
    json[std::string(f.name)] = *wrong;
    const std::string said = refusal<TypeParam>(json);
    EXPECT_NE(said.find(std::string(f.name) + ": "), std::string::npos) << said;
    EXPECT_NE(said.find("out of range; it must be "), std::string::npos) << said;
  });
}

TEST(Read, DoesNotCoerceTypes) {
  Json json = to_json(Workload{});
  const auto with = [&](const char* field, const Json& value) {
    Json changed = json;
    changed[field] = value;
    return refusal<Workload>(changed);
  };
  EXPECT_NE(with("sequence_length", "4096").find("expected a whole number, found the text \"4096\""), std::string::npos);
  EXPECT_NE(with("sequence_length", true).find("expected a whole number, found true"), std::string::npos);
  EXPECT_NE(with("sequence_length", nullptr).find("found null"), std::string::npos);
  EXPECT_NE(with("sequence_length", 8.5).find("expected a whole number, found 8.5"), std::string::npos);
  EXPECT_EQ(with("sequence_length", 8.0), "read");
  EXPECT_NE(with("sequence_length", 0).find("it must be at least 1"), std::string::npos);
  EXPECT_NE(with("sequence_length", -1).find("-1 is out of range"), std::string::npos);
  EXPECT_NE(with("sequence_length", 9223372036854775808ull).find("does not fit 63 bits"), std::string::npos);
  EXPECT_NE(with("sequence_length", 1e308).find("expected a whole number"), std::string::npos);
  EXPECT_NE(with("tokens", 1e308).find("out of range"), std::string::npos);
  EXPECT_NE(with("name", std::string("a\0b", 3)).find("NUL"), std::string::npos);
  EXPECT_NE(with("optimizer", "adam").find("known: adamw, adamw8bit, muon"), std::string::npos);
}

TEST(Read, ABareNumberWhereAUnitBelongsIsRefusedWithAnExample) {
  Json json = to_json(DeviceEntry{});
  json["device"]["memory"] = 80;
  EXPECT_NE(refusal<DeviceEntry>(json).find("f.json: device.memory: expected a text with a unit, like \"80 GiB\", found 80"), std::string::npos) << refusal<DeviceEntry>(json);
  json["device"]["memory"] = "80";
  EXPECT_NE(refusal<DeviceEntry>(json).find("is not a number with a unit"), std::string::npos);
  json["device"]["memory"] = "-80 GiB";
  EXPECT_NE(refusal<DeviceEntry>(json).find("-80 GiB is out of range; it must be more than 0 B and at most 1 PB"), std::string::npos) << refusal<DeviceEntry>(json);
}

TEST(Read, AMisspeltFieldIsAnsweredWithTheNearestName) {
  Json json = to_json(Workload{});
  json["sequence_lenght"] = 1;
  EXPECT_NE(refusal<Workload>(json).find("did you mean \"sequence_length\"?"), std::string::npos);
}

TEST(Read, AVariantNamesItsKinds) {
  Json json = to_json(LoadModel{});
  json["distribution"] = "zipf";
  EXPECT_EQ(refusal<LoadModel>(json), "read") << "a bare tag takes the defaults";
  json["distribution"] = Json{{"kind", "gauss"}};
  EXPECT_NE(refusal<LoadModel>(json).find("unknown kind \"gauss\"; known: uniform, zipf, log_normal, dirichlet, trace"), std::string::npos);
  json["distribution"] = 3;
  EXPECT_NE(refusal<LoadModel>(json).find("expected an object with \"kind\", found 3"), std::string::npos);
}

}  // namespace
}  // namespace moeplan
