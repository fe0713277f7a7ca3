"""Words that make a question a question. They are rare in notes, so that their rarity says nothing about what is asked.

Only words that ask or that merely carry the grammar of asking, case-folded; for scripts without spaces, the pairs of
characters by which such words are indexed.
"""

from __future__ import annotations

_BY_LANGUAGE = {
    "English": """what which who whom whose when where why how is are was were am be been do does did has have had can
        could will would shall should may might must tell me please know any there many much say about""",
    "German": """was welche welcher welches welchen wer wem wen wessen wann wo wohin woher warum wieso weshalb wie viel
        viele ist sind war waren hat haben kann wird bitte""",
    "French": """quoi que quel quelle quels quelles qui quand où pourquoi comment combien est sont était ont peut
        a-t-il a-t-elle est-ce""",
    "Spanish": """qué que cuál cual cuáles quién quien quiénes cuándo cuando dónde donde cómo como cuánto cuánta
        cuántos es""",
    "Portuguese": "qual quais quem quando onde porque como quanto quantos quanta são foi",
    "Italian": "cosa quale quali chi dove perché come quanto quanti quanta sono era",
    "Dutch": "wat welke wie wanneer waar waarom hoe hoeveel zijn heeft",
    "Scandinavian": """hva hvem hvilken hvilket hvilke når hvor hvorfor hvordan vad vem vilken vilka var varför hur
        hvad er är""",
    "Polish": "co kto jaki jaka jakie który która kiedy gdzie dlaczego jak ile czy jest",
    "Turkish": "ne kim hangi nerede nereye neden niçin nasıl kaç mi mı mu mü",
    "Russian": "что кто какой какая какое какие который когда где куда почему зачем как сколько чей ли был была были",
    "Ukrainian": "що хто який яка яке які коли де куди чому як скільки чи",
    "Arabic": "ما ماذا من متى أين لماذا كيف كم هل أي",
    "Persian": "چه چی کی کجا چرا چگونه چند آیا است",
    "Hindi": "क्या कौन कब कहाँ कहां क्यों कैसे कितना कितने कितनी है हैं था",
    "Hebrew": "מה מי מתי איפה למה מדוע איך כמה האם",
    "Greek": "τι ποιος ποια ποιο πότε πού γιατί πώς πόσο πόσα είναι",
    "Korean": "무엇 누구 언제 어디 왜 어떻게 얼마 어디에 나요 까요 습니까 인가요",
    "Japanese": "です すか ます ませ せん でし した いつ どこ だれ なに 何で なぜ どう いく くつ くら らい はい つで",
    "Chinese": "什么 什麼 么时 时候 怎么 怎麼 为什 為什 哪里 哪裡 哪个 多少 几个 是谁 谁的 吗 呢 是什",
}

QUESTION_WORDS = frozenset(word.casefold() for words in _BY_LANGUAGE.values() for word in words.split())
