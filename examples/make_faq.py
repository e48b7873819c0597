"""Made-up questions of a shop, to try cosent on: shop.csv of labelled pairs, and shop.xlsx of questions and answers.

python examples/make_faq.py

A pair has the label 1 if both sentences ask the same of the same product. As in a real file, some labels are wrong: 24
of 1,200.
"""

import csv
import random
from itertools import combinations

from openpyxl import Workbook

PRODUCTS = """手机 平板 电视 投影仪 冰箱 冰柜 洗衣机 烘干机 空调 电风扇 电脑 显示器 相机 镜头 耳机 音箱 键盘 鼠标
打印机 扫描仪 电饭煲 电磁炉 吸尘器 扫地机 书桌 餐桌 椅子 沙发 床垫 枕头 衣柜 鞋柜 台灯 吊灯 窗帘 地毯
自行车 滑板车 头盔 手套 帐篷 睡袋 背包 行李箱 手表 手环 吉他 钢琴"""  # two and two alike
QUESTIONS = {  # what is asked: the answer, and ways to ask
    "价格": ("见商品页，活动价以下单时为准。", "{}多少钱", "{}卖什么价", "买{}要花多少", "请问{}的价格"),
    "现货": ("有货，当天下单当天出库。", "{}有现货吗", "{}现在有没有货", "仓库里还有{}吗", "{}缺货了没"),
    "发货": ("下单后 24 小时内寄出。", "{}什么时候发货", "{}多久能寄出来", "我的{}怎么还没发", "{}几天发出"),
    "保修": ("保修两年。", "{}保修几年", "{}的质保期是多长", "{}能保多久", "买{}有几年质保"),
    "维修": ("请在“我的订单”里申请维修。", "{}坏了怎么修", "{}出故障了找谁", "哪里可以修{}", "{}用不了了怎么办"),
    "退货": ("签收七天内可以退，运费由我们承担。", "{}怎么退货", "{}不想要了能退吗", "{}可以退掉吗", "想把{}退了"),
    "换货": ("签收十五天内可以换同款。", "{}怎么换货", "{}能换个新的吗", "收到的{}想调换", "可以给我调换{}吗"),
    "发票": ("在订单详情里点“申请发票”。", "{}怎么开发票", "买{}能开票吗", "{}的发票在哪里", "我要{}的发票"),
    "安装": ("可以预约上门安装，不收费。", "{}怎么安装", "{}有人上门装吗", "{}安装要钱吗", "谁来给我装{}"),
    "分期": ("支持 3、6、12 期免息。", "{}可以分期吗", "{}能不能分几个月付", "买{}支持花呗分期吗", "{}分期要利息吗"),
}


def pairs(rng: random.Random) -> list[list]:
    """50 pairs for each two products that are alike: 24 the same question, 13 another one, 13 of the other product."""
    rows = []
    names = PRODUCTS.split()
    for two in zip(names[::2], names[1::2], strict=True):
        groups = [(product, asked) for product in two for asked in rng.sample(list(QUESTIONS), 2)]
        for product, asked in groups:
            rows += [[*pair, 1] for pair in combinations([way.format(product) for way in QUESTIONS[asked][1:]], 2)]
        negatives: set[tuple[str, str]] = set()
        while len(negatives) < 26:
            product, asked = rng.choice(groups)
            way, another = rng.sample(QUESTIONS[asked][1:], 2)
            if len(negatives) < 13:
                another = rng.choice(QUESTIONS[rng.choice([name for name in QUESTIONS if name != asked])][1:])
                negatives.add((way.format(product), another.format(product)))
            else:
                negatives.add((way.format(product), another.format(two[product == two[0]])))
        rows += [[*pair, 0] for pair in sorted(negatives)]
    for row in rng.sample(rows, 24):
        row[2] = 1 - row[2]
    rng.shuffle(rows)
    return rows


if __name__ == "__main__":
    with open("shop.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["sentence1", "sentence2", "label"], *pairs(random.Random(0))])
    book = Workbook()
    book.active.append(["question", "answer"])
    for product in PRODUCTS.split():
        for answer, question, *_ in QUESTIONS.values():
            book.active.append([question.format(product), f"{product}：{answer}"])
    book.save("shop.xlsx")
    print("shop.csv: 1,200 pairs; shop.xlsx: 480 questions with answers")
