#include "src/eval/tasks/word_lists.h"

#include <fmt/format.h>

#include <array>

namespace topkv {
namespace {

constexpr auto adjective_list = std::to_array<std::string_view>({
    "able",     "amber",    "ample",    "ancient",  "azure",    "bashful",  "blunt",    "bold",
    "brave",    "breezy",   "brief",    "bright",   "brisk",    "broad",    "bronze",   "calm",
    "careful",  "candid",   "cheerful", "chilly",   "civil",    "classic",  "clean",    "clever",
    "cloudy",   "coarse",   "copious",  "cordial",  "cosmic",   "crimson",  "crisp",    "curious",
    "curly",    "daring",   "dapper",   "deep",     "delicate", "dense",    "distant",  "dreamy",
    "dry",      "dusty",    "eager",    "early",    "earnest",  "eastern",  "easy",     "elastic",
    "elder",    "elegant",  "empty",    "endless",  "even",     "exact",    "faint",    "fair",
    "famous",   "fancy",    "fearless", "fertile",  "festive",  "fierce",   "fine",     "firm",
    "flat",     "fluffy",   "formal",   "frank",    "free",     "fresh",    "friendly", "frosty",
    "frugal",   "gallant",  "generous", "gentle",   "giant",    "gifted",   "glad",     "glossy",
    "golden",   "graceful", "grand",    "grateful", "green",    "hasty",    "hardy",    "healthy",
    "hearty",   "hidden",   "hollow",   "honest",   "humble",   "icy",      "idle",     "inland",
    "jolly",    "joyful",   "keen",     "kind",     "large",    "late",     "lavish",   "lean",
    "level",    "light",    "likely",   "little",   "lively",   "local",    "lofty",    "lone",
    "loud",     "loyal",    "lucid",    "lucky",    "lunar",    "marine",   "mellow",   "merry",
    "mighty",   "mild",     "misty",    "modest",   "mossy",    "muted",    "narrow",   "native",
    "neat",     "nimble",   "noble",    "northern", "novel",    "oblong",   "odd",      "olive",
    "open",     "orderly",  "outer",    "pale",     "patient",  "peaceful", "pearly",   "placid",
    "plain",    "playful",  "polite",   "porous",   "prompt",   "proper",   "proud",    "purple",
    "quaint",   "quick",    "quiet",    "rapid",    "rare",     "ready",    "regal",    "rich",
    "robust",   "rocky",    "roomy",    "rosy",     "rough",    "round",    "royal",    "ruddy",
    "rugged",   "rural",    "rusty",    "salty",    "sandy",    "scarlet",  "sedate",   "serene",
    "shallow",  "sharp",    "shiny",    "silent",   "silken",   "silver",   "simple",   "sleepy",
    "slender",  "smart",    "smooth",   "snowy",    "sober",    "soft",     "solar",    "solid",
    "southern", "spare",    "spicy",    "stable",   "stark",    "steady",   "steep",    "stout",
    "subtle",   "sudden",   "sunny",    "superb",   "supple",   "sweet",    "swift",    "tame",
    "tender",   "thin",     "thrifty",  "tidy",     "tiny",     "tranquil", "trim",     "trusty",
    "urban",    "useful",   "vast",     "velvet",   "violet",   "vivid",    "warm",     "wary",
    "western",  "wide",     "wild",     "windy",    "wise",     "witty",    "woolen",   "young",
});

constexpr auto town_list = std::to_array<std::string_view>(
    {"Ashford", "Brookdale", "Cedarville", "Dunmore", "Eastbrook", "Fairhaven", "Glenwood",
     "Harborne", "Inglewood", "Kingsley", "Lakemont", "Milford", "Northam", "Oakridge", "Penrose",
     "Redcliff"});

constexpr auto noun_list = std::to_array<std::string_view>({
    "acorn",    "actor",    "airport", "almond",  "anchor",   "anvil",    "apple",    "apron",
    "arch",     "armchair", "arrow",   "atlas",   "attic",    "autumn",   "badge",    "bakery",
    "balcony",  "ballad",   "bamboo",  "banner",  "barley",   "barn",     "basin",    "basket",
    "beacon",   "beaver",   "bell",    "bench",   "berry",    "bicycle",  "birch",    "blanket",
    "blossom",  "bonnet",   "border",  "bottle",  "boulder",  "bracelet", "branch",   "brick",
    "bridge",   "brook",    "broom",   "bucket",  "buckle",   "bugle",    "button",   "cabin",
    "cactus",   "camel",    "camera",  "canal",   "candle",   "canoe",    "canvas",   "canyon",
    "captain",  "caravan",  "carpet",  "carrot",  "castle",   "cavern",   "cedar",    "cellar",
    "chair",    "chalk",    "chapel",  "cheese",  "cherry",   "chest",    "chimney",  "circle",
    "citadel",  "clarinet", "cliff",   "clock",   "cloud",    "clover",   "coast",    "cobbler",
    "coffee",   "collar",   "comet",   "compass", "copper",   "coral",    "cottage",  "cotton",
    "cradle",   "crane",    "crater",  "cricket", "crown",    "crystal",  "curtain",  "cushion",
    "daisy",    "dancer",   "desert",  "diamond", "dolphin",  "donkey",   "doorway",  "dragon",
    "drawer",   "drum",     "eagle",   "easel",   "echo",     "elbow",    "elm",      "engine",
    "falcon",   "farmer",   "feather", "fence",   "fern",     "ferry",    "fiddle",   "field",
    "finch",    "flagpole", "flame",   "flask",   "flint",    "flute",    "forest",   "fortress",
    "fossil",   "fountain", "fox",     "galaxy",  "garden",   "garlic",   "gate",     "geyser",
    "glacier",  "glove",    "goblet",  "granite", "grape",    "gravel",   "guitar",   "hammer",
    "hammock",  "harbor",   "harp",    "harvest", "hatchet",  "hazel",    "hedge",    "helmet",
    "heron",    "hill",     "hinge",   "honey",   "horizon",  "hotel",    "island",   "ivory",
    "jacket",   "jasmine",  "jewel",   "journal", "jungle",   "kettle",   "kitchen",  "kite",
    "ladder",   "lagoon",   "lamp",    "lantern", "lark",     "lemon",    "lever",    "library",
    "lilac",    "linen",    "lion",    "lizard",  "locket",   "lumber",   "magnet",   "mango",
    "mantle",   "maple",    "marble",  "market",  "marsh",    "meadow",   "medal",    "melody",
    "melon",    "meteor",   "mill",    "mirror",  "mitten",   "monarch",  "mosaic",   "motor",
    "mountain", "mural",    "museum",  "napkin",  "needle",   "nest",     "notebook", "nutmeg",
    "oak",      "oasis",    "ocean",   "orange",  "orbit",    "orchard",  "orchid",   "otter",
    "oven",     "owl",      "oyster",  "paddle",  "palace",   "panther",  "paper",    "parade",
    "parcel",   "parrot",   "pasture", "path",    "pavilion", "peach",    "pebble",   "pelican",
    "pencil",   "pepper",   "piano",   "picnic",  "pigeon",   "pillow",   "pilot",    "pine",
    "planet",   "plaza",    "plum",    "pocket",  "poem",     "pond",     "pottery",  "prairie",
    "prism",    "pumpkin",  "puzzle",  "quarry",  "quartz",   "quill",    "quilt",    "rabbit",
    "raft",     "ranch",    "raven",   "reef",    "ribbon",   "ridge",    "river",    "robin",
    "rocket",   "rose",     "rudder",  "saddle",  "sail",     "salmon",   "sandal",   "sapphire",
    "satchel",  "scarf",    "school",  "scroll",  "sculptor", "shell",    "shepherd", "shore",
    "shovel",   "sketch",   "sleigh",  "socket",  "sparrow",  "spindle",  "spoon",    "spring",
    "spruce",   "stable",   "stadium", "statue",  "stream",   "street",   "summit",   "sundial",
    "sunset",   "swan",     "table",   "tailor",  "tavern",   "teapot",   "temple",   "terrace",
    "theater",  "thimble",  "thistle", "thunder", "ticket",   "tiger",    "timber",   "torch",
    "tower",    "trail",    "train",   "trumpet", "tulip",    "tunnel",   "turtle",   "umbrella",
    "valley",   "vault",    "vessel",  "village", "vineyard", "violin",   "volcano",  "wagon",
    "walnut",   "walrus",   "water",   "weaver",  "wharf",    "wheat",    "wheel",    "whistle",
    "willow",   "window",   "winter",  "wizard",  "workshop", "yacht",    "yarn",     "zebra",
});

constexpr auto people = std::to_array<std::string_view>({
    "engineers", "painters",  "farmers",  "merchants", "sailors",    "teachers",  "architects",
    "gardeners", "travelers", "printers", "weavers",   "shepherds",  "musicians", "clerks",
    "founders",  "neighbors", "students", "builders",  "carpenters", "doctors",   "historians",
});

constexpr auto plural_things = std::to_array<std::string_view>({
    "habits",  "letters",   "roads",    "machines",    "stories",  "markets",
    "seasons", "questions", "gardens",  "tools",       "bridges",  "promises",
    "maps",    "rivers",    "songs",    "experiments", "mistakes", "journeys",
    "rules",   "windows",   "sketches", "collections", "harvests", "debates",
});

constexpr auto mass_nouns = std::to_array<std::string_view>({
    "patience", "curiosity", "weather", "attention", "knowledge", "progress", "silence", "trade",
    "courage",  "craft",     "luck",    "memory",    "daylight",  "hunger",   "order",   "wealth",
    "leisure",  "doubt",     "skill",   "tradition", "effort",    "distance", "comfort", "praise",
});

constexpr auto places = std::to_array<std::string_view>({
    "in the northern valleys",
    "along the old canal",
    "behind the town hall",
    "near the harbor",
    "on the far shore",
    "in small workshops",
    "at the edge of the forest",
    "across the plain",
    "in the crowded market",
    "under the railway bridge",
    "beside the mill",
    "in quiet libraries",
    "on the upper floors",
    "between the two hills",
    "in most large cities",
    "far from the capital",
});

constexpr auto verbs = std::to_array<std::string_view>({
    "admire",  "avoid",   "borrow", "carry",   "collect",  "compare",  "defend",  "describe",
    "discuss", "examine", "follow", "forget",  "gather",   "ignore",   "imitate", "improve",
    "measure", "mention", "notice", "prefer",  "protect",  "question", "repair",  "repeat",
    "respect", "share",   "study",  "support", "treasure", "trust",    "value",   "welcome",
});

constexpr auto adverbs = std::to_array<std::string_view>({
    "seldom",
    "often",
    "quietly",
    "gladly",
    "rarely",
    "usually",
    "slowly",
    "carefully",
    "eventually",
    "sometimes",
    "willingly",
    "openly",
    "honestly",
    "secretly",
});

constexpr auto openings = std::to_array<std::string_view>({
    "In practice",
    "For a long time",
    "Oddly enough",
    "As a rule",
    "By the next spring",
    "On reflection",
    "To begin with",
    "After all",
    "In those years",
    "Even now",
    "According to most",
    "Without much notice",
    "Before the war",
    "At first sight",
    "Years later",
    "In the end",
});

}  // namespace

std::span<const std::string_view> adjectives() { return adjective_list; }
std::span<const std::string_view> nouns() { return noun_list; }

std::span<const std::string_view> towns() { return town_list; }

std::string random_adjective_noun(Random& random) {
  const std::string_view adjective = random.pick(adjective_list);
  return fmt::format("{}-{}", adjective, random.pick(noun_list));
}

std::string random_sentence(Random& random) {
  // Drawn in a fixed order: the order in which a compiler evaluates arguments is not.
  const auto shape = random.between(0, 13);
  const auto adjective = random.pick(adjective_list);
  const auto adjective2 = random.pick(adjective_list);
  const auto noun = random.pick(noun_list);
  const auto noun2 = random.pick(noun_list);
  const auto who = random.pick(people);
  const auto people2 = random.pick(people);
  const auto things = random.pick(plural_things);
  const auto things2 = random.pick(plural_things);
  const auto mass = random.pick(mass_nouns);
  const auto mass2 = random.pick(mass_nouns);
  const auto place = random.pick(places);
  const auto verb = random.pick(verbs);
  const auto verb2 = random.pick(verbs);
  const auto adverb = random.pick(adverbs);
  const auto opening = random.pick(openings);
  const auto year = random.between(1700, 1999);
  const auto few = random.between(2, 90);
  switch (shape) {
    case 0:
      return fmt::format("{}, {} {} {} the {} {} {}.", opening, who, adverb, verb, adjective, noun,
                         place);
    case 1:
      return fmt::format("The {} of {} depends less on {} than on {} {}.", things, who, mass,
                         adjective, things2);
    case 2:
      return fmt::format("Those who {} {} learn to {} a {} {} as well.", verb, things, verb2,
                         adjective, noun);
    case 3:
      return fmt::format("It took {} years before the {} {} {} was finished.", few, adjective, noun,
                         place);
    case 4:
      return fmt::format("Nobody expected {} to {} the {} of {}, least of all the {} {}.", who,
                         verb, things, mass, adjective, people2);
    case 5:
      return fmt::format("Time is what makes {} {} worth having, and {} comes second.", adjective,
                         things, mass);
    case 6:
      return fmt::format("{}, the {} was {} and the {} stood {}.", opening, noun, adjective, noun2,
                         place);
    case 7:
      return fmt::format("In {} a group of {} {} began to {} their {} {}.", year, few, who, verb,
                         things, place);
    case 8:
      return fmt::format("If {} were a kind of {}, we would {} {} it.", mass, mass2, adverb, verb);
    case 9:
      return fmt::format("My {} once kept a {} {} which he would {} {} to other {}.",
                         year % 2 == 0 ? "uncle" : "grandfather", adjective, noun, adverb, verb2,
                         who);
    case 10:
      return fmt::format("The more {} {} their {}, the less {} they need.", who, verb, things,
                         mass);
    case 11:
      return fmt::format("What the {} {} {} taught us is that {} and {} seldom travel together.",
                         adjective, noun, place, mass, mass2);
    case 12:
      return fmt::format("{}, {} {} between a {} {} and a {} {}.", opening, who,
                         year % 2 == 0 ? "must choose" : "never chose", adjective, noun, adjective2,
                         noun2);
    default:
      return fmt::format("There are {} ways to {} a {}, and {} {} know most of them.", few, verb,
                         noun, adjective, who);
  }
}

}  // namespace topkv
