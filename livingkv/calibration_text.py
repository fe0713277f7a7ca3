"""Sentences of many kinds and languages, always the same: what all sentences have in common is measured on them.

Knows words only. Any change to what `calibration_sentences` returns changes vectors, and so must raise
CALIBRATION_VERSION.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

CALIBRATION_VERSION = 1

_PEOPLE = """Miriam,the new intern,Dr. Okafor,our landlord,the committee,Pedro's sister,a customer from Oslo,the night
shift,Captain Reyes,my grandmother,the auditor,Yuki,the city council,an engineer,the choir,Mr. Lindqvist"""
_THINGS = """the water pump,a signed contract,the garden fence,the blue folder,the quarterly report,a spare key,the old
database,a box of screws,the coffee machine,the train ticket,the test suite,a letter of complaint,the second draft,the
oak table,the router,the vaccination record,a silver coin,the bread recipe,the projector,the insurance policy"""
_PLACES = """in the cellar,near the harbour,at the station,on the third floor,behind the school,in Valparaiso,at the
clinic,under the stairs,on the shared drive,in the northern valley,next to the bakery,in the archive"""
_TIMES = """last Tuesday,in March,before noon,after the storm,twice a year,at 7:45,in 1994,during the meeting,every
Sunday,since the move,on 12 May,by the end of the week"""
_VALUES = (
    "14,£230,87 percent,6.2 kilometres,ER-5501,three days,42 litres,0x1F,half a page,nine people,-8 degrees,2.5 GB"
)
_IDENTIFIERS = """max_retries,parse_header,UserAccount,buffer_size,load_config,timeout,row_count,OrderQueue,is_valid,
mergeSort,cache_dir,Matrix"""

_FRAMES = (
    "{person} left {thing} {place} {time}.",
    "The price of {thing} rose to {value} {time}.",
    "According to {person}, {thing} weighs more than it looks.",
    "{thing} has been missing {time}, and nobody asked for it.",
    "Please bring {thing} to {person} {time}.",
    "It took {value} to repair {thing} {place}.",
    "When it rains, {person} works {place}.",
    "- {person}: {value}",
    "# Notes about {thing}",
    "Note: {thing} must be checked {time} by {person}.",
    "{person} prefers tea to coffee and plays chess {place}.",
    "Nobody could explain why {thing} stood {place}.",
    "In the end {person} bought {thing} for {value}.",
    "The temperature {place} fell by {value} {time}.",
    "def {name}(path, {name2}=None):",
    "    return {name2}.get('{name}', {number})",
    "{name} = {number}  # see {name2}",
    "for item in {name}: print(item.{name2})",
    "The method {name} raises ValueError if {name2} is larger than {number}.",
    "Set {name} to {number} to turn {name2} off.",
    "SELECT {name} FROM {name2} WHERE id > {number};",
    "Error {number}: {name2} could not be opened.",
    "The function returns a list of {name} objects sorted by {name2}.",
    "Volcanoes form where plates of the crust drift apart or collide.",
    "Her first novel was refused by {number} publishers.",
    "A triangle with two equal sides has two equal angles.",
    "The parliament passed the law with a majority of {value}.",
    "Bees tell each other by dancing where flowers are.",
    "The old bridge was closed to lorries {time}.",
    "Vitamin C is lost when vegetables are boiled for long.",
    "We met {place} and talked about {thing} until midnight.",
    "I am afraid that {person} has already gone home.",
    "Der Schlüssel für den Keller hängt neben der Tür, Nummer {number}.",
    "Am Freitag kommt der Techniker und prüft die Heizung.",
    "Le train de {number} heures part du quai numéro deux.",
    "Ma voisine a planté des tomates derrière la maison.",
    "La reunión se ha aplazado hasta el lunes {number} de junio.",
    "El médico recomienda caminar una hora cada día.",
    "Il gatto dorme sul tetto da {number} giorni.",
    "A biblioteca fecha às {number} horas aos sábados.",
    "De fiets staat achter de schuur en heeft een lekke band.",
    "Поезд опоздал на {number} минут из-за снега.",
    "Ключи лежат в ящике письменного стола.",
    "Kocioł trzeba wymienić przed zimą, koszt to {number} złotych.",
    "会议改到星期{number}下午三点,地点不变。",
    "仓库的钥匙在门卫那里。",
    "図書館は午後{number}時に閉まります。",
    "駅前の店でパンを買いました。",
    "회의는 {number}층 회의실에서 열립니다.",
    "الاجتماع القادم يوم {number} في المكتب الجديد.",
    "बैठक कमरा नंबर {number} में होगी।",
    "Toplantı saat {number} civarında başlayacak.",
    "Το λεωφορείο φεύγει κάθε {number} λεπτά.",
)
_QUESTIONS = (
    "Where is {thing}?",
    "Who took {thing} {time}?",
    "What did {person} do {place}?",
    "When does {person} come back?",
    "How much does {thing} cost?",
    "Which number belongs to {thing}?",
    "Why was {thing} {place}?",
    "How many people were {place} {time}?",
    "Do you know whether {person} has {thing}?",
    "What is the value of {name}?",
    "Which function calls {name}?",
    "What happens if {name2} is larger than {number}?",
    "I forgot what {person} said about {thing}. What was it?",
    "Tell me about {thing}.",
    "Someone asked for {person}: what should I answer?",
    "Wo hängt der Schlüssel für Raum {number}?",
    "Wann kommt der Techniker?",
    "À quelle heure part le train?",
    "¿Cuándo es la reunión?",
    "Dove dorme il gatto?",
    "Где лежат ключи?",
    "会议什么时候开始?",
    "図書館は何時に閉まりますか?",
    "회의는 어디에서 열립니까?",
    "أين الاجتماع القادم؟",
)


def calibration_sentences(n: int) -> list[str]:
    """The first `n`, at most about 1,000, different statements, notes, code lines and questions in many languages."""
    texts = dict.fromkeys(_filled((*_FRAMES, *_QUESTIONS), 40))
    assert len(texts) >= n, "there are not so many"
    return list(texts)[:n]


def _filled(frames: Sequence[str], n_turns: int) -> Iterator[str]:
    people, things, places, times, values, names = (
        [part.strip() for part in words.replace("\n", " ").split(",")]
        for words in (_PEOPLE, _THINGS, _PLACES, _TIMES, _VALUES, _IDENTIFIERS)
    )
    for index in range(n_turns * len(frames)):
        turn = index // len(frames)
        at = 7 * index + 13 * turn  # different words for each frame and turn
        text = frames[index % len(frames)].format(
            person=people[at % len(people)],
            thing=things[(at + turn) % len(things)],
            place=places[(at // 3 + turn) % len(places)],
            time=times[(at // 5 + turn) % len(times)],
            value=values[(at // 2 + turn) % len(values)],
            name=names[(at + turn) % len(names)],
            name2=names[(at // 2 + 5 * turn + 1) % len(names)],
            number=2 + (31 * at) % 97,
        )
        yield text[0].upper() + text[1:] if text.startswith(("the ", "a ", "an ", "my ", "our ")) else text
