"""A character vocabulary for Chinese, made from the GB2312 standard alone: no corpus, no download."""

import string

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CHINESE_PUNCTUATION = "，。？！、；：“”‘’（）《》〈〉【】「」『』—…·～￥％＋－＝／＊＃＠＆＜＞｜％℃°×÷±→←↑↓★☆●○■□◆◇"
LATIN_PIECES = [
    "app",
    "qq",
    "wifi",
    "wechat",
    "vip",
    "ok",
    "pk",
    "tv",
    "pc",
    "cpu",
    "usb",
    "gps",
    "atm",
    "pos",
    "ktv",
    "nba",
    "dna",
    "iphone",
    "ipad",
    "http",
    "www",
    "com",
    "cn",
    "ing",
    "er",
    "ed",
    "ly",
]


def gb2312_characters() -> list[str]:
    """The 6,763 Chinese characters of GB2312 (rows 16-87), sorted by code point.

    Source: GB/T 2312-1980, through Python's own codec.
    """
    codes = (bytes((high, low)) for high in range(0xB0, 0xF8) for low in range(0xA1, 0xFF))
    characters = (code.decode("gb2312", errors="ignore") for code in codes)
    return sorted(character for character in characters if character)


def character_vocabulary() -> list[str]:
    """Tokens of a lower-cased `BertTokenizer`, in id order: special tokens, punctuation, digits, Latin, Chinese.

    Every digit and Latin letter stands once as the start and once as the continuation (`##`) of a word, so that no
    Latin word or number ever becomes [UNK].
    """
    latin = [*string.digits, *string.ascii_lowercase, *LATIN_PIECES]
    tokens = [*SPECIAL_TOKENS, *string.punctuation, *CHINESE_PUNCTUATION, *latin]
    tokens += [f"##{piece}" for piece in latin] + gb2312_characters()
    return list(dict.fromkeys(tokens))
